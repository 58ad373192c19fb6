"""Spark looks for data sources in modules of this kind of name; the one that it finds here is `pixy`."""

from pixy.spark.data_source import PixyDataSource as DefaultSource

__all__ = ["DefaultSource"]
