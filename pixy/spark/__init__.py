"""The data source `pixy` for PySpark 4.2 and newer. Needs the extra `spark`; see docs/spark.md."""

from pixy.spark.data_source import PixyDataSource
from pixy.spark.java import use_java

__all__ = ["PixyDataSource", "use_java"]
