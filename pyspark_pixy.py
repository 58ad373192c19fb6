"""Data source `pixy` for Spark, which finds data sources by the names of their modules."""

from pixy.spark.data_source import PixyDataSource as DefaultSource

__all__ = ["DefaultSource"]
