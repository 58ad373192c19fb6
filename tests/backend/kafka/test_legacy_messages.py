"""pixy/backend/kafka/legacy_messages.py: formats 0 and 1 are returned as record batches, or
reported as damaged.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from pixy.backend import TopicPartition
from pixy.backend.kafka.fetch import read_batches
from pixy.errors import CorruptData
from pixy.records import COMPRESSION, patch_batch, read_records
from tests.conformance.support import append, make_batch, values
from tests.kafka.backends import open_kafka, start_again
from tests.kafka.cluster import KafkaCluster

Found = list[tuple[int, int, bytes | None, bytes | None]]
CODECS = [
    (magic, codec)
    for magic in (0, 1)
    for codec in ("none", "gzip", "snappy", "lz4")
    if (magic, codec) != (0, "lz4")
]


def written(magic: int, codec: str, offsets: range, base: int = 0) -> bytes:
    """Messages as written by an old producer and stored by the broker."""
    builder = LegacyRecordBatchBuilder(magic, COMPRESSION[codec], 1 << 20)
    for offset in offsets:
        relative = offset - offsets[0] if codec != "none" and magic else offset
        builder.append(relative, 1000 + offset, b"k%d" % offset, b"v%d" % offset)
    entry = bytearray(builder.build())
    if codec != "none":
        struct.pack_into(">q", entry, 0, offsets[-1])
    return bytes(entry)


def read(records: bytes, offset: int = 0, max_bytes: int = 1 << 20) -> tuple[Found, int]:
    found = read_batches(records, offset, max_bytes)
    return [
        (each.offset, each.timestamp, each.key, each.value)
        for batch in found.batches
        for each in read_records(batch)
    ], found.next_offset


def expected(magic: int, offsets: range) -> Found:
    return [(each, (1000 + each) * magic, b"k%d" % each, b"v%d" % each) for each in offsets]


@pytest.mark.parametrize(("magic", "codec"), CODECS)
def test_messages_of_the_older_formats_are_returned(magic: int, codec: str) -> None:
    entry = written(magic, codec, range(40, 45))
    assert read(entry, 40) == (expected(magic, range(40, 45)), 45)
    assert read(entry, 43) == (expected(magic, range(43, 45)), 45)


@pytest.mark.parametrize(("magic", "codec"), CODECS)
def test_a_truncated_message_is_left_for_the_next_fetch(magic: int, codec: str) -> None:
    first, second = written(magic, codec, range(3)), written(magic, codec, range(3, 4))
    for end in range(len(second)):
        assert read(first + second[:end]) == (expected(magic, range(3)), 3)
    assert read(second[:-1], 3) == ([], 3)


def test_a_message_shorter_than_a_batch_header_is_returned() -> None:
    builder = LegacyRecordBatchBuilder(0, 0, 1000)
    builder.append(7, None, None, b"v")
    assert len(builder.build()) < 61
    assert read(bytes(builder.build()), 7) == ([(7, 0, None, b"v")], 8)


def test_gaps_of_compaction_stay_gaps() -> None:
    records = b"".join(written(1, "none", range(at, at + 1)) for at in (2, 3, 9))
    assert read(records) == (expected(1, range(2, 4)) + expected(1, range(9, 10)), 10)


def test_batches_follow_messages_in_the_log_of_a_topic_that_was_upgraded() -> None:
    batch = make_batch(b"new", b"newer")
    patch_batch(batch, 5, 0)
    found, next_offset = read(written(1, "gzip", range(3)) + written(0, "none", range(3, 5)) + bytes(batch))
    assert [offset for offset, *_ in found] == list(range(7))
    assert [value for *_, value in found[-2:]] == [b"new", b"newer"]
    assert next_offset == 7


@pytest.mark.slow
def test_a_fetch_returns_a_bounded_number_of_messages_and_the_next_one_continues_inside_a_wrapper() -> None:
    entry = written(1, "gzip", range(2500))
    found: list[Any] = []
    offset, answers = 0, 0
    while offset < 2500:
        some, offset = read(entry, offset)
        found += some
        answers += 1
    assert found == expected(1, range(2500))
    assert answers == 3


def test_the_append_time_of_a_wrapper_applies_to_all_its_messages() -> None:
    entry = bytearray(written(1, "gzip", range(2)))
    entry[17] |= 0x08
    struct.pack_into(">q", entry, 18, 77)
    struct.pack_into(">I", entry, 12, crc32(entry[16:]))
    assert [at_ms for _, at_ms, *_ in read(bytes(entry))[0]] == [77, 77]


@pytest.mark.parametrize(("magic", "codec"), CODECS)
def test_damage_anywhere_after_the_length_is_reported(magic: int, codec: str) -> None:
    entry = written(magic, codec, range(40, 41 if codec == "none" else 42))
    for at in range(12, len(entry)):
        damaged = bytearray(entry)
        damaged[at] ^= 0x20
        with pytest.raises(CorruptData):
            read(bytes(damaged), 40)


def test_a_wrapper_that_cannot_be_decompressed_names_its_last_offset() -> None:
    entry = bytearray(written(1, "gzip", range(40, 42)))
    entry[40:45] = bytes(5)
    struct.pack_into(">I", entry, 12, crc32(entry[16:]))
    with pytest.raises(CorruptData, match="messages of format 1 up to offset 41 cannot be read"):
        read(bytes(entry), 40)


def test_a_nested_wrapper_is_rejected() -> None:
    inner = written(1, "gzip", range(2))
    builder = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    builder.append(9, 0, None, inner)
    entry = bytearray(builder.build())
    entry[17] |= COMPRESSION["gzip"]
    struct.pack_into(">I", entry, 12, crc32(entry[16:]))
    with pytest.raises(CorruptData):
        read(bytes(entry))


@pytest.mark.process
async def test_a_log_stored_in_the_older_formats_is_read_to_its_end(
    kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    partition = TopicPartition(kafka_name("old"), 0)
    async with open_kafka(kafka) as backend:
        await backend.create_topic(partition.topic, 1)
    broker = kafka.broker(1)
    await asyncio.to_thread(broker.stop)
    log = broker.folder / "data" / f"{partition.topic}-0" / f"{0:020d}.log"
    log.write_bytes(
        written(0, "none", range(3)) + written(1, "gzip", range(3, 6)) + written(1, "none", range(6, 7))
    )
    await start_again(kafka)
    async with open_kafka(kafka) as backend:
        await append(backend, partition, b"new")
        found, offset = [], 0
        async with asyncio.timeout(60):
            while offset < 8:
                result = await backend.fetch(partition, offset, max_bytes=1 << 20)
                found += values(result)
                offset = result.next_offset
        assert found == [*(b"v%d" % each for each in range(7)), b"new"]
