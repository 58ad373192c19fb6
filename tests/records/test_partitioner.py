"""Keys map to the same partitions as with kafka-pixy and Kafka's clients; everything else is
spread.
"""

from collections import Counter
from random import Random

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from pixy.errors import ConfigError
from pixy.records import PARTITIONERS, make_partitioner

# kafka-pixy: hash partitioner (FNV-1a 32)
KAFKA_PIXY_VECTORS = {
    3: "''=0 foo=1 bar=2 A=1 C=0",
    4: "''=3 1=0 2=1 3=2 4=3 5=0 foo=1 bar=2 A=0 B=3 C=2 D=1",
    5: "foo=3 A=4 1=4",
    12: "foo=1 B=7 C=6",
}

# org.apache.kafka.common.utils.UtilsTest.testMurmur2, without the sign bit
MURMUR2_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(
    ("partitions", "vector"),
    [(partitions, vector) for partitions, line in KAFKA_PIXY_VECTORS.items() for vector in line.split()],
)
def test_hash_assigns_keys_like_kafka_pixy(partitions: int, vector: str) -> None:
    key, _, expected = vector.partition("=")
    assert make_partitioner("hash", Random(0))(key.strip("'").encode(), partitions) == int(expected)


@given(key=st.binary(max_size=100), partitions=st.integers(1, 1000))
def test_hash_is_the_remainder_of_the_signed_fnv1a_negated_if_negative(key: bytes, partitions: int) -> None:
    unsigned = 2166136261
    for byte in key:
        unsigned = (unsigned ^ byte) * 16777619 % 2**32
    signed = int.from_bytes(unsigned.to_bytes(4, "big"), "big", signed=True)
    remainder = signed - partitions * int(signed / partitions)  # Go truncates toward zero
    expected = -remainder if remainder < 0 else remainder
    assert make_partitioner("hash", Random(0))(key, partitions) == expected


@pytest.mark.parametrize(("key", "signed"), MURMUR2_VECTORS.items())
def test_murmur2_gives_the_hash_of_the_java_client(key: bytes, signed: int) -> None:
    assert make_partitioner("murmur2", Random(0))(key, 2**31) == signed & 0x7FFFFFFF


@given(key=st.binary(max_size=100), partitions=st.integers(1, 1000))
def test_murmur2_assigns_keys_like_aiokafka(key: bytes, partitions: int) -> None:
    every = list(range(partitions))
    assert make_partitioner("murmur2", Random(0))(key, partitions) == DefaultPartitioner()(key, every, every)


@pytest.mark.parametrize("name", ["hash", "murmur2"])
@pytest.mark.parametrize("length", [0, 1, 64, 65, 10_000])
def test_a_key_always_gets_the_same_partition(name: str, length: int) -> None:
    partitioner = make_partitioner(name, Random(0))
    key = b"k" * length
    assert {partitioner(key, 7) for _ in range(10)} == {make_partitioner(name, Random(1))(key, 7)}


@pytest.mark.parametrize("name", ["hash", "murmur2"])
def test_a_cached_key_follows_a_change_of_the_number_of_partitions(name: str) -> None:
    partitioner = make_partitioner(name, Random(0))
    partitioner(b"foo", 4)
    assert partitioner(b"foo", 5) == make_partitioner(name, Random(0))(b"foo", 5)


@pytest.mark.parametrize("name", ["hash", "murmur2"])
def test_an_empty_key_is_a_key(name: str) -> None:
    partitioner = make_partitioner(name, Random(0))
    assert len({partitioner(b"", 1000) for _ in range(20)}) == 1


@pytest.mark.parametrize("name", ["hash", "murmur2", "random"])
def test_records_without_a_key_are_spread_over_all_partitions(name: str) -> None:
    partitioner = make_partitioner(name, Random(0))
    counts = Counter(partitioner(None, 4) for _ in range(4000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 850


@pytest.mark.parametrize("name", ["hash", "murmur2"])
@pytest.mark.parametrize("partitions", [1, 2, 4, 7, 12])
def test_records_without_a_key_take_all_partitions_in_rounds_of_random_order(
    name: str, partitions: int
) -> None:
    partitioner = make_partitioner(name, Random(0))
    rounds = [tuple(partitioner(None, partitions) for _ in range(partitions)) for _ in range(200)]
    assert all(sorted(each) == list(range(partitions)) for each in rounds)
    assert len(set(rounds)) >= {1: 1, 2: 2}.get(partitions, 8)
    partitioner(None, partitions)
    assert sorted(partitioner(None, 30) for _ in range(30)) == list(range(30))


def test_random_ignores_the_key() -> None:
    partitioner = make_partitioner("random", Random(0))
    assert {partitioner(b"foo", 4) for _ in range(100)} == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["hash", "murmur2", "random"])
def test_randomness_comes_from_the_caller(name: str) -> None:
    first, second = make_partitioner(name, Random(5)), make_partitioner(name, Random(5))
    assert [first(None, 100) for _ in range(50)] == [second(None, 100) for _ in range(50)]


def test_roundrobin_takes_the_partitions_in_turn_from_the_first() -> None:
    partitioner = make_partitioner("roundrobin", Random(0))
    assert [partitioner(key, 3) for key in (None, b"a", b"a", None, b"", b"b", None)] == [0, 1, 2, 0, 1, 2, 0]


def test_roundrobin_starts_over_after_partitions_were_removed() -> None:
    partitioner = make_partitioner("roundrobin", Random(0))
    assert [partitioner(None, 5) for _ in range(4)] == [0, 1, 2, 3]
    assert [partitioner(None, 2) for _ in range(3)] == [0, 1, 0]


def test_roundrobin_has_a_counter_per_topic() -> None:
    first, second = make_partitioner("roundrobin", Random(0)), make_partitioner("roundrobin", Random(0))
    assert (first(None, 3), first(None, 3), second(None, 3)) == (0, 1, 0)


@pytest.mark.parametrize("name", PARTITIONERS)
@given(key=st.none() | st.binary(max_size=8), partitions=st.integers(1, 10_000))
def test_every_partitioner_stays_within_the_partitions(name: str, key: bytes | None, partitions: int) -> None:
    assert 0 <= make_partitioner(name, Random(0))(key, partitions) < partitions


def test_an_unknown_partitioner_is_rejected_with_the_valid_names() -> None:
    with pytest.raises(ConfigError, match="'sticky', expected one of hash, murmur2, random, roundrobin"):
        make_partitioner("sticky", Random(0))
