"""Messages in Kafka's formats 0 and 1, written before Kafka 0.11: decoded, and packed into record
batches. Pure.

    byte  size  field
    0     8     offset; of a wrapper the last one inside
    8     4     length of the rest
    12    4     CRC-32 of bytes 16..end
    16    1     magic, 0 or 1
    17    1     attributes: bits 0-2 codec, 3 timestamp type
    18    8     timestamp, with magic 1 only
    ...         length of the key and key, length of the value and value; length -1: none

Brokers return the stored format, whatever the version of the request (KIP-724). A compressed
message is a wrapper: its value consists of messages, whose offsets are relative to 0 with magic 1,
and absolute with magic 0.

    damage, reported by CorruptData with the offset length, checksum, magic, or a wrapper in a
    wrapper a codec that fails to decompress; so does lz4 with magic 0, whose frames have wrong
    checksums (KAFKA-3160)

Magic 0 has no timestamp; its records get 0, because the first record of a batch needs one.
"""

import struct
from binascii import crc32
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.records import build_batch, decompress_records, patch_batch

MAGIC_AT = 16
"""Index of the magic byte, in these formats and in record batches."""

_HEAD = struct.Struct(">qiIbb")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CODEC_BITS = 0x07
_LOG_APPEND_TIME = 0x08
_NO_LEADER_EPOCH = -1


class LegacyMessage(NamedTuple):
    """An uncompressed message."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class _Raw(NamedTuple):
    message: LegacyMessage
    magic: int
    attributes: int


def read_messages(entry: memoryview) -> list[LegacyMessage]:
    """The messages of one log entry, or those in a wrapper, in order of offset.

    Raises:
        CorruptData: it is damaged.
    """
    outer = _read(entry)
    codec = outer.attributes & _CODEC_BITS
    if not codec:
        return [outer.message]
    try:
        unpacked = memoryview(decompress_records(outer.message.value or b"", codec))
        inner = [_read(unpacked[begin:end]) for begin, end in _entries(unpacked)]
    except CorruptData as error:
        raise CorruptData(
            f"the messages of format {outer.magic} up to offset {outer.message.offset} cannot be read: {error}"
        ) from error
    if not inner or any(each.attributes & _CODEC_BITS for each in inner):
        raise CorruptData(f"the message at offset {outer.message.offset} wraps no messages, or wrappers")
    return list(_placed(outer, [each.message for each in inner]))


def pack_messages(messages: Iterable[LegacyMessage]) -> list[memoryview]:
    """Record batches of these messages, one for each run of consecutive offsets."""
    batches: list[memoryview] = []
    run: list[LegacyMessage] = []
    for message in messages:
        if run and message.offset != run[-1].offset + 1:
            batches.append(_pack(run))
            run = []
        run.append(message)
    if run:
        batches.append(_pack(run))
    return batches


def _placed(outer: _Raw, inner: list[LegacyMessage]) -> Iterator[LegacyMessage]:
    """Messages of a wrapper with their absolute offsets and timestamps."""
    first = outer.message.offset - inner[-1].offset if outer.magic else 0
    for message in inner:
        at_ms = outer.message.timestamp_ms if outer.attributes & _LOG_APPEND_TIME else message.timestamp_ms
        yield message._replace(offset=first + message.offset, timestamp_ms=at_ms)


def _pack(run: list[LegacyMessage]) -> memoryview:
    batch = build_batch([(each.key, each.value, (), max(each.timestamp_ms, 0)) for each in run])
    patch_batch(batch, run[0].offset, _NO_LEADER_EPOCH)
    return memoryview(batch).toreadonly()


def _entries(messages: memoryview) -> Iterator[tuple[int, int]]:
    """Begin and end of each entry."""
    begin = 0
    while begin < len(messages):
        try:
            end = begin + _LENGTH.size + 8 + _LENGTH.unpack_from(messages, begin + 8)[0]
        except struct.error:
            end = 0
        if not begin < end <= len(messages):
            raise CorruptData(f"a message at byte {begin} of a wrapper of {len(messages)} bytes is cut off")
        yield begin, end
        begin = end


def _read(entry: memoryview) -> _Raw:
    try:
        offset, _, crc, magic, attributes = _HEAD.unpack_from(entry)
        at, timestamp_ms = _HEAD.size, 0
        if magic == 1:
            (timestamp_ms,) = _TIMESTAMP.unpack_from(entry, at)
            at += _TIMESTAMP.size
        key, at = _field(entry, at)
        value, at = _field(entry, at)
    except (struct.error, ValueError):
        raise CorruptData(f"a message of {len(entry)} bytes ends before its fields") from None
    actual = crc32(entry[MAGIC_AT:])
    if magic not in (0, 1) or actual != crc or at != len(entry):
        raise CorruptData(
            f"the message at offset {offset} is damaged: magic {magic}, CRC-32 {actual:#010x} instead of {crc:#010x}, "
            f"{len(entry)} bytes instead of {at}"
        )
    return _Raw(LegacyMessage(offset, timestamp_ms, key, value), magic, attributes)


def _field(entry: memoryview, at: int) -> tuple[bytes | None, int]:
    """Key or value, and the index behind it."""
    (length,) = _LENGTH.unpack_from(entry, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    if at + length > len(entry):
        raise ValueError
    return bytes(entry[at : at + length]), at + length
