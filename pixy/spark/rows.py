"""Rows to write: the relevant columns in Arrow's basic types, without the query's other columns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pixy.errors import InvalidArgument, InvalidTopic
from pixy.records import check_topic_name
from pixy.spark.arrow import int64_column, null_flags
from pixy.spark.schema import WriteColumns, arrow_schema

Ints = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Columns of the same length; None: no such column."""

    value: pa.Array
    key: pa.Array | None
    headers: pa.Array | None
    topic: pa.Array | None
    partition: pa.Array | None

    def slice(self, first: int, count: int) -> "Rows":
        """A slice of the rows, without a copy."""
        return Rows(*(None if each is None else each.slice(first, count) for each in self))

    def at(self, places: Ints) -> "Rows":
        """The rows at these indexes."""
        return Rows(*(None if each is None else each.take(int64_column(places)) for each in self))

    @staticmethod
    def concat(parts: "Sequence[Rows]") -> "Rows":
        """The rows of several parts of the same query."""
        if len(parts) == 1:
            return parts[0]
        return Rows(
            *(None if each[0] is None else pa.concat_arrays(each) for each in zip(*parts, strict=True))
        )

    def topics(self) -> tuple[list[str], Ints]:
        """Distinct names in the column `topic`, and each row's index into them.

        Raises:
            InvalidArgument: a row has no topic, or an invalid one.
        """
        assert self.topic is not None, "rows without the column are written with the option topic"
        missing = np.flatnonzero(null_flags(self.topic))
        if missing.size:
            raise InvalidArgument(
                "a row has null in the column topic: every row needs a topic, or set the option topic"
            )
        encoded = self.topic.dictionary_encode()
        names: list[str] = encoded.dictionary.to_pylist()
        for name in names:
            try:
                check_topic_name(name)
            except InvalidTopic as error:
                raise InvalidArgument(f"the column topic: {error}") from None
        return names, np.frombuffer(encoded.indices.buffers()[1], np.int32)[: len(self.topic)].astype(
            np.int64
        )


def project(batch: pa.RecordBatch, columns: WriteColumns) -> Rows:
    """Project a batch to the columns to write."""
    header_type = arrow_schema(include_headers=True).field("headers").type
    headers = _column(batch, columns.headers)
    return Rows(
        value=batch.column(columns.value).cast(pa.binary()),
        key=None if columns.key is None else batch.column(columns.key).cast(pa.binary()),
        headers=None if headers is None else headers.cast(header_type),
        topic=None if columns.topic is None else batch.column(columns.topic).cast(pa.string()),
        partition=_column(batch, columns.partition),
    )


def _column(batch: pa.RecordBatch, place: int | None) -> pa.Array | None:
    return None if place is None else batch.column(place)
