"""A job in a process of its own that copies a topic and dies at a given point; run by
`test_exactly_once`.

    python -m tests.spark.copy_job ADDRESS SOURCE TARGET FOLDER POINT:BATCH

POINT is one of `write` (in a task, after its last row), `before` and `after` (the publication).
There the JVM is killed, and everything else with it.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pixy.spark import PixyDataSource
from pixy.spark.options import Use, write_options
from pixy.spark.schema import write_columns
from pixy.spark.sink import Staged, StreamWriter
from tests.spark.conftest import start_session


class DyingWriter(StreamWriter):
    """A writer that dies at the given point."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        die_at("write", int(context.getLocalProperty("streaming.sql.batchId") or -1))
        return staged

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        die_at("before", batchId)
        super().commit(messages, batchId)
        die_at("after", batchId)


class DyingSource(PixyDataSource):
    """`pixy` with that writer."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = write_options(self.options, Use.STREAM_WRITE)
        return DyingWriter(options, write_columns(schema, topic=options.topic, include_headers=True))


def die_at(point: str, batch: int) -> None:
    """Kill the JVM at the given point."""
    if os.environ["PIXY_TEST_POINT"] == f"{point}:{batch}":
        folder = Path(os.environ["PIXY_TEST_FOLDER"])
        (folder / f"died-{point}:{batch}").touch()
        os.kill(int((folder / "jvm").read_text()), signal.SIGKILL)
        os._exit(9)


def start_copy(spark: SparkSession, address: str, source: str, target: str, folder: str) -> StreamingQuery:
    """Start or resume a copy up to the end of the topic."""
    options = {"pixy.address": address, "pixy.timeoutMs": "60000"}
    reading = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10000"}
    rows = spark.readStream.format("pixy").options(**options, **reading).load()
    writer = rows.select("key", "value").writeStream.format("pixy").options(**options, topic=target)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()


def main(address: str, source: str, target: str, folder: str, point: str) -> None:
    """Copy up to the given point."""
    os.environ["PIXY_TEST_POINT"] = point
    os.environ["PIXY_TEST_FOLDER"] = folder
    spark = start_session()
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    (Path(folder) / "jvm").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(DyingSource)
    start_copy(spark, address, source, target, folder).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
