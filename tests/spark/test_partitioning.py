"""A key maps to the same partition as with Produce."""

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.records import make_partitioner
from pixy.spark.partitioning import KEY_PARTITIONERS, key_partitions
from tests.records.test_partitioner import KAFKA_PIXY_VECTORS, MURMUR2_VECTORS


@pytest.mark.slow
@pytest.mark.parametrize("partitioner", sorted(KEY_PARTITIONERS))
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=50), st.integers(1, 40), st.integers(0, 3))
def test_keys_map_to_the_partitions_of_produce(
    partitioner: str, keys: list[bytes], partitions: int, skipped: int
) -> None:
    choose = make_partitioner(partitioner, Random(0))
    column = pa.array(keys, pa.binary()).slice(min(skipped, len(keys) - 1))
    assert key_partitions(column, partitions, partitioner).tolist() == [
        choose(key, partitions) for key in column.to_pylist()
    ]


def test_kafka_pixys_test_vectors_hold() -> None:
    for partitions, line in KAFKA_PIXY_VECTORS.items():
        pairs = [vector.split("=") for vector in line.split()]
        keys = pa.array([key.strip("'").encode() for key, _ in pairs], pa.binary())
        assert key_partitions(keys, partitions, "hash").tolist() == [int(expected) for _, expected in pairs]


def test_kafkas_test_vectors_hold() -> None:
    keys = pa.array(list(MURMUR2_VECTORS), pa.binary())
    wanted = [(number & 0x7FFFFFFF) % 1000 for number in MURMUR2_VECTORS.values()]
    assert key_partitions(keys, 1000, "murmur2").tolist() == wanted


def test_null_and_empty_keys_are_valid() -> None:
    column = pa.array([None, b"", b"a"], pa.binary())
    choose = make_partitioner("hash", Random(0))
    assert key_partitions(column, 7, "hash").tolist()[1:] == [choose(b"", 7), choose(b"a", 7)]
    assert key_partitions(pa.array([b"", None], pa.binary()), 7, "murmur2").tolist()[0] == make_partitioner(
        "murmur2", Random(0)
    )(b"", 7)
