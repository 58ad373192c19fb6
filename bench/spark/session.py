"""A Spark session in a process of its own, controlled by standard input; see `bench.spark`.

    python -m bench.spark.session JSON

The sessions of all connectors run this same file, so that rows, settings and queries are the same
and only the connector differs. It needs only PySpark, because the interpreter of Kafka's connector
has an older PySpark and no pixy. The JSON object has the fields of `Session`. Once the session has
started and a topic is filled through the connector, it prints `{}`. Each line of standard input
names a method of `Session` and its arguments, as a JSON list; the answer is a JSON number on one
line. It exits at the end of standard input.

Standard output carries only answers: Spark's own output is redirected to standard error.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 8
KEY_BYTES = 8
VALUE_BYTES = 100
MEMORY = "memory-source"
_TRIGGERS = 32
_WARM_TRIGGERS = 2
_STREAM_BATCHES = 4
_FILLED = "filled"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
}


class Session:
    """A session under measurement.

    Args:
        connector: pixy or kafka.
        address: address of the daemon or the broker.
        rows: number of rows written and read.
        folder: directory of the checkpoints.
        jars: jars of the connector, separated by commas.
    """

    def __init__(self, connector: str, address: str, rows: int, folder: str, jars: str = "") -> None:
        self._connector = connector
        self._address = {"kafka.bootstrap.servers": address}
        self._rows = rows
        self._folder = Path(folder)
        self._writes = self._streams = 0
        if connector == "pixy":
            from pixy.spark import use_java

            use_java()
        self._spark = _start(jars)
        if connector == "pixy":
            from bench.spark.memory import MemorySource

            self._spark.dataSource.register(MemorySource)
        key = f"encode(substring(sha2(CAST(id AS STRING), 256), 1, {KEY_BYTES}), 'utf-8') AS key"
        value = f"repeat('x', {VALUE_BYTES}) AS value"
        self._table = self._spark.range(0, rows, 1, 4).selectExpr(key, value).cache()
        self._table.count()
        self._write(_FILLED)

    def batch_read(self) -> float:
        """Rows per second of a complete read of the topic."""
        options = {**self._address, "subscribe": _FILLED}
        return self._read(self._spark.read.format(self._connector).options(**options).load())

    def memory_read(self) -> float:
        """The same for a Python source that yields prebuilt batches."""
        return self._read(self._spark.read.format(MEMORY).option("rows", self._rows).load())

    def batch_write(self) -> float:
        """Rows per second of a write to a new topic: written-1, written-2, and so on."""
        self._writes += 1
        return self._write(f"written-{self._writes}")

    def stream(self) -> float:
        """Rows per second of the micro-batches after the first, which is mostly the start of the
        query.
        """
        query = self._start_stream(self._connector, self._rows // _STREAM_BATCHES, available_now=True)
        query.awaitTermination()
        steady = [each for each in query.recentProgress if each["numInputRows"]][1:]
        rows = sum(each["numInputRows"] for each in steady)
        return float(rows / sum(each["durationMs"]["triggerExecution"] for each in steady) * 1000)

    def micro_batch_ms(self, source: str = "") -> float:
        """Median duration of micro-batches with a row per partition, or a row from memory."""
        query = self._start_stream(source or self._connector, PARTITIONS, available_now=False)
        while len(query.recentProgress) < _TRIGGERS and query.isActive:
            query.awaitTermination(1)
        query.stop()
        found = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        return float(statistics.median(found[_WARM_TRIGGERS:]))

    def stop(self) -> None:
        """End the session."""
        self._spark.stop()

    def _read(self, frame: DataFrame) -> float:
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return self._rows / (time.perf_counter() - began)

    def _write(self, topic: str) -> float:
        writer = self._table.write.format(self._connector).options(**self._address, topic=topic)
        began = time.perf_counter()
        writer.mode("append").save()
        return self._rows / (time.perf_counter() - began)

    def _start_stream(self, source: str, rows_max: int, *, available_now: bool) -> StreamingQuery:
        self._streams += 1
        reader = self._spark.readStream.format(source)
        if source != MEMORY:
            options = {**self._address, "subscribe": _FILLED, "startingOffsets": "earliest"}
            reader = reader.options(**options, maxOffsetsPerTrigger=rows_max)
        checkpoint = self._folder / f"{self._connector}-checkpoint-{self._streams}"
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()


def _start(jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("pixy-bench")
    for name, value in {**_SETTINGS, **({"spark.jars": jars} if jars else {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _serve(arguments: dict[str, Any]) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    session = Session(**arguments)
    answers.write("{}\n")
    for line in sys.stdin:
        method, *rest = json.loads(line)
        answers.write(json.dumps(getattr(session, method)(*rest)) + "\n")
    session.stop()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
