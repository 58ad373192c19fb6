"""Partitioners: assignment of records to partitions.

The names are those of kafka-pixy's option `producer.partitioner`, plus `murmur2`, the partitioner
of Kafka's own clients. `hash` assigns keys to the same partitions as kafka-pixy, so they stay in
place when a client migrates.

A record without a key goes to a random partition. With `hash` and `murmur2` the caller may let
several such records stick together (KIP-480), because a batch costs as much as ten records, and the
choices are spread evenly; `random` and `roundrobin` promise a choice per record.

Computing a hash byte by byte in Python takes microseconds, so the hashes of short keys are cached.
The cache does not depend on the number of partitions, and is limited in entries and in bytes.
"""

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from random import Random
from typing import Protocol

from pixy.errors import ConfigError

_CACHED_KEYS_MAX = 8192
_CACHED_KEY_BYTES_MAX = 64
_32_BITS = 0xFFFFFFFF
_MURMUR2 = 0x5BD1E995


class Partitioner(Protocol):
    """Chooses partitions for the records of one topic.

    Attributes:
        stays: consecutive records without a key may follow the first one to its partition.
    """

    stays: bool

    def __call__(self, key: bytes | None, partitions: int) -> int:
        """A partition in [0, `partitions`), with `partitions` >= 1.

        An empty key is a key, None is not.
        """


def _fnv1a(key: bytes) -> int:
    """The magnitude of the key's FNV-1a 32 hash as a signed 32-bit number.

    kafka-pixy takes the remainder of the signed number, truncated toward zero, and negates it if it
    is negative. That is the remainder of the magnitude.
    """
    value = 0x811C9DC5
    for byte in key:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value if value < 0x80000000 else 0x100000000 - value


def _murmur2(key: bytes) -> int:
    """Hash of the key as computed by Kafka's Java client, without the sign bit: MurmurHash2, 32
    bits, little-endian, with Kafka's seed.
    """
    whole = len(key) & ~3
    value = 0x9747B28C ^ len(key)
    for at in range(0, whole, 4):
        value = value * _MURMUR2 & _32_BITS ^ _murmur2_mix(int.from_bytes(key[at : at + 4], "little"))
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MURMUR2 & _32_BITS
    value = (value ^ value >> 13) * _MURMUR2 & _32_BITS
    return (value ^ value >> 15) & 0x7FFFFFFF


def _murmur2_mix(word: int) -> int:
    word = word * _MURMUR2 & _32_BITS
    return (word ^ word >> 24) * _MURMUR2 & _32_BITS


class _RandomPartitioner:
    stays = False

    def __init__(self, rng: Random) -> None:
        self._random = rng.random

    def __call__(self, key: bytes | None, partitions: int) -> int:
        return int(self._random() * partitions)


class _Rounds:
    """Partitions in rounds, each of which has all of them once, in an order of its own.

    In a round all steps are equal, and have no divisor in common with the number of partitions.
    """

    def __init__(self, rng: Random) -> None:
        self._random = rng.random
        # Of the present round. Invariant: `_at` < `_partitions` after the first one.
        self._partitions = self._left = self._at = self._step = 0

    def next(self, partitions: int) -> int:
        if partitions != self._partitions or not self._left:
            self._begin(partitions)
        self._left -= 1
        self._at = (self._at + self._step) % partitions
        return self._at

    def _begin(self, partitions: int) -> None:
        self._partitions = self._left = partitions
        self._at = int(self._random() * partitions)
        self._step = 1 + int(self._random() * partitions)
        while gcd(self._step, partitions) > 1:
            self._step += 1


class _KeyPartitioner:
    """The same partition for equal keys; without a key all partitions in random rounds."""

    stays = True

    def __init__(self, compute: Callable[[bytes], int], rng: Random) -> None:
        self._compute = compute
        self._cached = lru_cache(maxsize=_CACHED_KEYS_MAX)(compute)
        self._rounds = _Rounds(rng)

    def __call__(self, key: bytes | None, partitions: int) -> int:
        if key is None:
            return self._rounds.next(partitions)
        if len(key) <= _CACHED_KEY_BYTES_MAX:
            return self._cached(key) % partitions
        return self._compute(key) % partitions


class _RoundRobinPartitioner:
    stays = False

    def __init__(self) -> None:
        # Partition of the next record. Invariant: >= 0; may be too large after the number of
        # partitions has changed.
        self._next = 0

    def __call__(self, key: bytes | None, partitions: int) -> int:
        chosen = self._next if self._next < partitions else 0
        self._next = chosen + 1
        return chosen


PARTITIONERS: dict[str, Callable[[Random], Partitioner]] = {
    "hash": lambda rng: _KeyPartitioner(_fnv1a, rng),
    "murmur2": lambda rng: _KeyPartitioner(_murmur2, rng),
    "random": _RandomPartitioner,
    "roundrobin": lambda rng: _RoundRobinPartitioner(),
}
"""Factories of partitioners by configuration name."""


def make_partitioner(name: str, rng: Random) -> Partitioner:
    """Create a partitioner for one topic. `roundrobin` has a counter, so topics must not share one.

    Args:
        name: a key of `PARTITIONERS`.
        rng: source of randomness.

    Raises:
        ConfigError: unknown partitioner.
    """
    make = PARTITIONERS.get(name)
    if make is None:
        raise ConfigError(f"unknown partitioner {name!r}, expected one of {', '.join(PARTITIONERS)}")
    return make(rng)
