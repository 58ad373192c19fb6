"""Spark reads and writes pixy: the data source `pixy` for PySpark 4.2 and newer. It needs the extra `spark`; see docs/spark.md."""

from pixy.spark.data_source import PixyDataSource
from pixy.spark.java import use_java

__all__ = ["PixyDataSource", "use_java"]
