"""A Python source that yields prebuilt Arrow batches of pixy's rows: the upper limit of any source
in Python.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.spark.session import KEY_BYTES, MEMORY, PARTITIONS, VALUE_BYTES
from pixy.spark.arrow import binary_array, column, int32_column, int64_column, string_column
from pixy.spark.schema import arrow_schema, read_schema

_BATCH_ROWS = 8192


class MemorySource(DataSource):
    """Yields the same Arrow batch repeatedly; as a stream, one row per micro-batch."""

    @classmethod
    def name(cls) -> str:
        return MEMORY

    def schema(self) -> StructType:
        return read_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _MemoryReader(int(self.options["rows"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _CountingReader()


class _MemoryReader(DataSourceReader):
    """Reads a share of the rows in each of 8 tasks."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = _prebuilt(_BATCH_ROWS)
        for _ in range(self._rows // PARTITIONS // _BATCH_ROWS):
            yield batch


class _CountingReader(DataSourceStreamReader):
    """Reads one row in one task per micro-batch, as fast as Spark triggers them."""

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        return {"at": int(start["at"]) + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield _prebuilt(1)


def _prebuilt(rows: int) -> pa.RecordBatch:
    keys = np.random.default_rng(0).integers(0, 256, rows * KEY_BYTES, np.uint8)
    contents = np.random.default_rng(1).integers(0, 256, rows * VALUE_BYTES, np.uint8)
    columns = [
        binary_array(np.arange(0, rows * KEY_BYTES + 1, KEY_BYTES, dtype=np.int32), keys),
        binary_array(np.arange(0, rows * VALUE_BYTES + 1, VALUE_BYTES, dtype=np.int32), contents),
        string_column("memory", rows),
        int32_column(np.zeros(rows, np.int32)),
        int64_column(np.arange(rows, dtype=np.int64)),
        column(pa.timestamp("us", tz="UTC"), np.zeros(rows, np.int64)),
        int32_column(np.zeros(rows, np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers=False))
