"""Schemas: columns of a read are fixed, those of a write are found by name and checked by type."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pixy.errors import InvalidArgument
from pixy.spark.schema import WriteColumns, arrow_schema, check_read_schema, read_schema, write_columns

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def row(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_arrow_schema_is_exactly_what_spark_expects(include_headers: bool) -> None:
    expected = to_arrow_schema(read_schema(include_headers=include_headers), timezone="UTC")
    found: pa.Schema = arrow_schema(include_headers=include_headers)
    assert found.equals(expected)


def test_only_the_fixed_schema_is_accepted() -> None:
    check_read_schema(read_schema(include_headers=True), include_headers=True)
    with pytest.raises(
        InvalidArgument, match=r"rows of pixy have the schema struct<key:binary,.* found struct<value:string>"
    ):
        check_read_schema(row(value=StringType()), include_headers=False)


def test_columns_are_found_by_name_whatever_their_case_and_position() -> None:
    schema = row(
        other=LongType(),
        Partition=IntegerType(),
        TOPIC=StringType(),
        Value=BinaryType(),
        key=StringType(),
        headers=ArrayType(HEADER),
    )
    assert write_columns(schema, topic=None, include_headers=True) == WriteColumns(3, 4, 5, 2, 1)


def test_the_option_topic_takes_precedence_over_the_column() -> None:
    columns = write_columns(row(value=StringType(), topic=StringType()), topic="t", include_headers=True)
    assert columns == WriteColumns(0, None, None, None, None)


def test_headers_can_be_omitted() -> None:
    schema = row(value=StringType(), headers=ArrayType(HEADER))
    assert write_columns(schema, topic="t", include_headers=False).headers is None


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            row(key=BinaryType(), topic=StringType()),
            "the column value of type string or binary is missing; found key, topic",
        ),
        (row(value=BinaryType()), "no topic is given: set the option topic, or have a column topic"),
        (
            row(value=LongType(), topic=StringType()),
            "the column value has type bigint, expected string or binary",
        ),
        (row(value=BinaryType(), topic=BinaryType()), "the column topic has type binary, expected string"),
        (
            row(value=BinaryType(), topic=StringType(), partition=LongType()),
            "the column partition has type bigint, expected int",
        ),
        (
            row(value=BinaryType(), topic=StringType(), key=IntegerType()),
            "the column key has type int, expected string or binary",
        ),
        (
            row(value=BinaryType(), topic=StringType(), headers=StringType()),
            "the column headers has type string, expected array<struct",
        ),
        (StructType([StructField("value", StringType())] * 2), "there are 2 columns value, expected one"),
    ],
)
def test_unsupported_columns_are_rejected(schema: StructType, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write_columns(schema, topic=None, include_headers=True)
