"""The data source `pixy`: checks options and columns when Spark plans, and creates readers and
writers.

Spark imports this, through `pyspark_pixy`, whenever it looks up a data source, and a module that
fails to import hides all others. So only pyspark is imported at module level.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceWriter


class PixyDataSource(DataSource):
    """Batch and streaming reads from and writes to pixy; see docs/spark.md for the options.

    Every method raises `InvalidArgument` for options that are unknown, contradictory or invalid.
    """

    @classmethod
    def name(cls) -> str:
        return "pixy"

    def schema(self) -> StructType:
        from pixy.spark.options import wants_headers
        from pixy.spark.schema import read_schema

        return read_schema(include_headers=wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from pixy.spark.options import Use, read_options
        from pixy.spark.schema import check_read_schema
        from pixy.spark.source import BatchReader

        options = read_options(self.options, Use.BATCH_READ)
        check_read_schema(schema, include_headers=options.include_headers)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pixy.spark.options import Use, read_options
        from pixy.spark.schema import check_read_schema
        from pixy.spark.stream import StreamReader

        options = read_options(self.options, Use.STREAM_READ)
        check_read_schema(schema, include_headers=options.include_headers)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        from pixy.spark.options import Use, write_options
        from pixy.spark.schema import write_columns
        from pixy.spark.sink import BatchWriter, reject_overwrite

        reject_overwrite(overwrite, 'a batch write needs .mode("append")')
        options = write_options(self.options, Use.BATCH_WRITE)
        columns = write_columns(schema, topic=options.topic, include_headers=options.include_headers)
        return BatchWriter(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamArrowWriter":
        from pixy.spark.options import Use, write_options
        from pixy.spark.schema import write_columns
        from pixy.spark.sink import StreamWriter, reject_overwrite

        reject_overwrite(overwrite, 'a stream needs .outputMode("append")')
        options = write_options(self.options, Use.STREAM_WRITE)
        columns = write_columns(schema, topic=options.topic, include_headers=options.include_headers)
        return StreamWriter(options, columns)
