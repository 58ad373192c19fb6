"""Partitions of a column of keys: the hashes of `pixy.records`, for many keys at once.

The hashes process a key byte by byte, so here all keys are hashed together, with one numpy pass per
byte; a key that has ended keeps its value. Keys map to the same partitions as with `Produce`. Very
long keys would need as many passes, so they are hashed one by one.
"""

from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pixy.records import make_partitioner

Words = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_LONG_KEY_BYTES = 256

KEY_PARTITIONERS = frozenset({"hash", "murmur2"})
"""Partitioners that use the key; others treat every record as one without a key."""


def key_partitions(keys: pa.Array, partitions: int, partitioner: str) -> Ints:
    """Partition of each key, in 0 .. `partitions` - 1; undefined where the key is null.

    Args:
        keys: a binary column.
        partitioner: one of `KEY_PARTITIONERS`.
    """
    offsets, octets = _content(keys)
    start, length = offsets[:-1], np.diff(offsets)
    if octets.size == 0:
        octets = np.zeros(1, np.uint8)
    short = np.where(length <= _LONG_KEY_BYTES, length, 0)
    hashes = _fnv1a(octets, start, short) if partitioner == "hash" else _murmur2(octets, start, short)
    chosen = hashes.astype(np.int64) % partitions
    long_ones = np.flatnonzero(length > _LONG_KEY_BYTES)
    if long_ones.size:
        choose = make_partitioner(partitioner, Random(0))
        for each in long_ones.tolist():
            chosen[each] = choose(keys[each].as_py(), partitions)
    return chosen


def _content(values: pa.Array) -> tuple[Ints, Bytes]:
    """Offsets and bytes of a binary column; the offsets index the bytes."""
    _, offsets, content = values.buffers()
    begin = values.offset
    positions = np.frombuffer(offsets, np.int32)[begin : begin + len(values) + 1].astype(np.int64)
    return positions, np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)


def _at(octets: Bytes, places: Ints) -> Words:
    return octets[np.minimum(places, len(octets) - 1)].astype(np.uint32)


def _fnv1a(octets: Bytes, start: Ints, length: Ints) -> Words:
    """Absolute value of FNV-1a 32 as a signed integer, as in kafka-pixy."""
    value = np.full(len(start), 0x811C9DC5, np.uint32)
    for place in range(int(length.max(initial=0))):
        mixed = (value ^ _at(octets, start + place)) * np.uint32(0x01000193)
        value = np.where(length > place, mixed, value)
    return np.where(value < 0x80000000, value, np.uint32(0) - value)


def _murmur2(octets: Bytes, start: Ints, length: Ints) -> Words:
    """Kafka's murmur2 without the sign bit: four bytes at a time, then up to three that remain."""
    factor: np.uint32 = np.uint32(0x5BD1E995)
    value = np.uint32(0x9747B28C) ^ length.astype(np.uint32)
    words = length // 4
    for place in range(int(words.max(initial=0))):
        at = start + 4 * place
        word = (
            _at(octets, at) | _at(octets, at + 1) << 8 | _at(octets, at + 2) << 16 | _at(octets, at + 3) << 24
        )
        word *= factor
        word = (word ^ (word >> 24)) * factor
        value = np.where(words > place, (value * factor) ^ word, value)
    left, at = length % 4, start + 4 * words
    rest = _at(octets, at)
    rest ^= np.where(left > 1, _at(octets, at + 1) << 8, np.uint32(0))
    rest ^= np.where(left > 2, _at(octets, at + 2) << 16, np.uint32(0))
    value = np.where(left > 0, (value ^ rest) * factor, value)
    mixed: Words = (value ^ (value >> np.uint32(13))) * factor
    result: Words = (mixed ^ (mixed >> np.uint32(15))) & np.uint32(0x7FFFFFFF)
    return result
