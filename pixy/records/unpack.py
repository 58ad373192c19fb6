"""Decompression of records within a memory limit.

Decompresses the record section of a batch. A malicious batch of a thousand bytes can decompress to
gigabytes, and no header reveals that: gzip has no size field, the ones of zstd and lz4 may be
missing or wrong, and a stream may have any number of frames. So each codec stops as soon as its
output exceeds `bytes_max`, regardless of any size field:

    codec                     limited by
    gzip                      the stream is asked for at most one byte beyond the limit
    snappy, raw               a block starts with its size, and its decoder writes no more than that
    snappy, in xerial frames  the same for each block, with what the previous ones left
    lz4, zstd                 the decoder writes into `bytes_max` bytes of memory, fails at its end

That memory is provided in two steps, because fresh pages cost more than decompression itself:
ordinary batches use a buffer kept per thread, larger ones use anonymous memory, of which only the
written pages are real. Alternatives considered: trusting the size in a frame; doubling a buffer
until everything fits, which decompresses a large batch repeatedly.
"""

import gzip
import io
import mmap
import struct
import threading
import zlib
from collections.abc import Callable

import cramjam

from pixy.records.batch import Buffer

UNPACKED_BYTES_MAX = 32 << 20
"""Limit of the decompressed records of a batch, in bytes.

It is 32 times the largest batch that pixy accepts or builds by default; repetitive text compresses
to a tenth or a twentieth. A consumer group keeps one decompressed batch per partition at a time;
while it is being created there are two or three copies of it.
"""

_KEPT_BYTES = 1 << 20
"""Size of the buffer kept per thread: a batch of `producer.flush_bytes`."""

_GZIP_FORMAT = 16 + zlib.MAX_WBITS
"""Header and trailer of a gzip member, not those of zlib."""

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_BLOCK_SIZE = struct.Struct(">i")
_STRICT_BLOCK_BYTES = 1 << 10
"""Least decompressed size of all xerial blocks but the last, if `strict`. It is the smallest that
Java's writer can be set to; its default, and that of the others, is 32 KiB.
"""
_BUFFER_IS_FULL = "failed to write whole buffer"
"""cramjam's message when the output buffer is full."""


class UnpackLimitError(Exception):
    """The output exceeds the limit."""


class _UnpackBuffer(threading.local):
    def __init__(self) -> None:
        self.buffer = bytearray(_KEPT_BYTES)


_kept = _UnpackBuffer()


def unpack(codec: int, packed: bytes, bytes_max: int, *, strict: bool = False) -> Buffer:
    """Decompress the records of a batch.

    Args:
        codec: a value of `COMPRESSION` other than 0.
        packed: everything after the batch's header.
        bytes_max: limit of the output.
        strict: accept one gzip member only, and no snappy blocks below 1 KiB but the last: a great
            many of them take long and are little output.

    Returns:
        The records. Valid until this thread decompresses again.

    Raises:
        UnpackLimitError: the output exceeds the limit. No more than that was decompressed.
        ValueError: unknown codec.
        MemoryError: there is too little memory.
        Exception: raised by the codec's library for invalid bytes.
    """
    match codec:
        case 1:
            return _gzip(packed, bytes_max, strict=strict)
        case 2:
            return _snappy(packed, bytes_max, strict=strict)
        case 3:
            return _into_bounded(cramjam.lz4.decompress_into, packed, bytes_max)
        case 4:
            return _into_bounded(cramjam.zstd.decompress_into, packed, bytes_max)
        case _:
            raise ValueError(f"unknown compression codec {codec}, expected 1 to 4")


def _gzip(packed: bytes, bytes_max: int, *, strict: bool) -> bytes:
    member = zlib.decompressobj(_GZIP_FORMAT)
    unpacked = member.decompress(packed, bytes_max + 1)
    if len(unpacked) > bytes_max:
        raise UnpackLimitError
    if not member.eof:
        raise EOFError("the gzip member is incomplete")
    if member.unused_data:
        if strict:
            raise ValueError(f"{len(member.unused_data)} bytes behind the gzip member")
        return _gzip_members(packed, bytes_max)
    return unpacked


def _gzip_members(packed: bytes, bytes_max: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        unpacked = stream.read(bytes_max + 1)
    if len(unpacked) > bytes_max:
        raise UnpackLimitError
    return unpacked


def _snappy(packed: bytes, bytes_max: int, *, strict: bool) -> Buffer:
    if not packed.startswith(_XERIAL_HEADER):
        return _snappy_block(packed, bytes_max)
    view = memoryview(packed)
    unpacked = bytearray()
    at = len(_XERIAL_HEADER)
    while at < len(packed):
        (size,) = _BLOCK_SIZE.unpack_from(packed, at)
        at += _BLOCK_SIZE.size
        if not 0 <= size <= len(packed) - at:
            raise ValueError(f"snappy block of {size} bytes with {len(packed) - at} bytes left")
        block = _snappy_block(view[at : at + size], bytes_max - len(unpacked))
        unpacked += block
        at += size
        if strict and len(block) < _STRICT_BLOCK_BYTES and (at < len(packed) or not block):
            raise ValueError(
                f"a snappy block of {len(block)} bytes decompressed, expected at least {_STRICT_BLOCK_BYTES}, "
                "and in the last block at least 1"
            )
    return unpacked


def _snappy_block(packed: Buffer, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(packed) > bytes_max:
        raise UnpackLimitError
    return bytes(cramjam.snappy.decompress_raw(packed))


def _anonymous_memory(size: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"{size} bytes for decompressed records: {error.strerror}") from error


def _into_bounded(
    decompress_into: Callable[[bytes, Buffer], int], packed: bytes, bytes_max: int
) -> memoryview:
    """Decompress into bounded memory; the thread's own buffer is tried first."""
    kept = memoryview(_kept.buffer)[:bytes_max]
    try:
        return kept[: decompress_into(packed, kept)]
    except cramjam.DecompressionError as error:
        if str(error) != _BUFFER_IS_FULL:
            raise
    if bytes_max > len(kept):
        room = _anonymous_memory(bytes_max)
        try:
            return room[: decompress_into(packed, room)]
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_IS_FULL:
                raise
    raise UnpackLimitError
