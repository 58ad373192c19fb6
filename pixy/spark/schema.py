"""Row schemas: the seven or eight columns of a read, as in Spark's Kafka connector, and those that
a writer uses.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pixy.errors import InvalidArgument

_COLUMNS: list[tuple[str, DataType]] = [
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
]
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def read_schema(*, include_headers: bool) -> StructType:
    """Schema of a reader's rows, built without DDL, which needs a session to be parsed."""
    headers: list[tuple[str, DataType]] = [("headers", ArrayType(_HEADER))] if include_headers else []
    return StructType([StructField(name, kind) for name, kind in (*_COLUMNS, *headers)])


@cache
def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The same schema in Arrow's types; Spark requires each batch to match it exactly."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))))
    return pa.schema(fields)


def check_read_schema(schema: StructType, *, include_headers: bool) -> None:
    """Check that a schema given by the user is that of the rows.

    Raises:
        InvalidArgument: the schemas differ.
    """
    wanted = read_schema(include_headers=include_headers)
    if _shape(schema) != _shape(wanted):
        raise InvalidArgument(
            f"rows of pixy have the schema {wanted.simpleString()}, and no other: found {schema.simpleString()}; "
            "leave .schema(...) out, and set includeHeaders for the column headers"
        )


def _shape(schema: StructType) -> Sequence[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class WriteColumns(NamedTuple):
    """Indexes of the columns to write; None: the row has no such column."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None


def write_columns(schema: StructType, *, topic: str | None, include_headers: bool) -> WriteColumns:
    """Find the columns to write; others are ignored, as by Spark's Kafka connector.

    Args:
        topic: the option `topic`, which takes precedence over the column.

    Raises:
        InvalidArgument: a column is missing, or has an unsupported type.
    """
    binary = "string or binary"
    value = _find(schema, "value", binary)
    if value is None:
        raise InvalidArgument(f"the column value of type {binary} is missing; found {_names(schema)}")
    topic_column = _find(schema, "topic", "string")
    if topic is None and topic_column is None:
        raise InvalidArgument(
            f"no topic is given: set the option topic, or have a column topic of type string; found {_names(schema)}"
        )
    return WriteColumns(
        value=value,
        key=_find(schema, "key", binary),
        headers=_find(schema, "headers", "array<struct<key:string,value:binary>>")
        if include_headers
        else None,
        topic=topic_column if topic is None else None,
        partition=_find(schema, "partition", "int"),
    )


def _find(schema: StructType, name: str, allowed: str) -> int | None:
    """Index of the column; names are compared case-insensitively, as in Spark."""
    places = [place for place, field in enumerate(schema.fields) if field.name.lower() == name]
    if not places:
        return None
    if len(places) > 1:
        raise InvalidArgument(f"there are {len(places)} columns {name}, expected one; found {_names(schema)}")
    found = schema.fields[places[0]].dataType
    if not _fits(found, name):
        raise InvalidArgument(f"the column {name} has type {found.simpleString()}, expected {allowed}")
    return places[0]


def _fits(found: DataType, name: str) -> bool:
    if name in ("key", "value"):
        return isinstance(found, StringType | BinaryType)
    if name == "topic":
        return isinstance(found, StringType)
    if name == "partition":
        return isinstance(found, IntegerType)
    item = found.elementType if isinstance(found, ArrayType) else None
    return isinstance(item, StructType) and _shape(item) == [("key", "string"), ("value", "binary")]


def _names(schema: StructType) -> str:
    return ", ".join(field.name for field in schema.fields) or "no columns"
