"""Compressed records unpacked, and never into more memory than is allowed.

Owns the decompression of the record part of a batch. A thousand bytes that a client has built unpack to gigabytes, and no header says so:
gzip tells no size at all, what zstd and lz4 tell may be missing or wrong, and a stream may have any number of frames. So each codec
stops as soon as there is more than `bytes_max`, whatever was said before:

    codec                     what bounds it
    gzip                      no more than one byte too many is asked of the stream
    snappy, raw               a block begins with its size, and its decoder writes no more than that
    snappy, in xerial frames  the same for each block, with what the ones before it left
    lz4, zstd                 the decoder writes into memory of `bytes_max` bytes, and fails at its end

That memory is taken in two steps, because fresh pages cost more than unpacking does: ordinary batches go through a buffer that each
thread keeps, the others through anonymous memory, of which only what is written is real. The roads not taken: to believe the size in a
frame; to double a buffer until all fits, which unpacks a large batch again and again.
"""

import gzip
import io
import mmap
import struct
import threading
from collections.abc import Callable

import cramjam

from pixy.records.batch import Buffer

__all__ = ["UNPACKED_BYTES_MAX", "UnpacksTooFarError", "unpack"]

UNPACKED_BYTES_MAX = 32 << 20
"""Bytes that the records of one compressed batch may have when they are unpacked: 32 times what a batch has that pixy takes or cuts by
default. Text that repeats itself shrinks to a tenth or a twentieth. A consumer group keeps one batch of a partition unpacked at a time;
while that is made there are two or three copies of it."""

_KEPT_BYTES = 1 << 20
"""Size of the buffer that each thread keeps: a batch of `producer.flush_bytes`."""

_GZIP_RATIO = 16
"""Text that shrinks to less than this part of it is rare."""

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_BLOCK_SIZE = struct.Struct(">i")
_BUFFER_IS_FULL = "failed to write whole buffer"
"""How cramjam says that the memory it writes into has ended."""


class UnpacksTooFarError(Exception):
    """There is more than may be unpacked."""


class _UnpackBuffer(threading.local):
    def __init__(self) -> None:
        self.buffer = bytearray(_KEPT_BYTES)


_kept = _UnpackBuffer()


def unpack(codec: int, packed: bytes, bytes_max: int) -> Buffer:
    """Decompress the records of a batch.

    Args:
        codec: a value of `COMPRESSION` other than 0.
        packed: everything behind the batch's header.
        bytes_max: most bytes to unpack.

    Returns:
        The records. Valid until this thread unpacks again.

    Raises:
        UnpacksTooFarError: there are more. No more than that was unpacked.
        ValueError: an unknown codec.
        Exception: whatever the codec's library raises for bytes that make no sense.
    """
    match codec:
        case 1:
            return _gzip(packed, bytes_max)
        case 2:
            return _snappy(packed, bytes_max)
        case 3:
            return _into_bounded(cramjam.lz4.decompress_into, packed, bytes_max)
        case 4:
            return _into_bounded(cramjam.zstd.decompress_into, packed, bytes_max)
        case _:
            raise ValueError(f"unknown compression codec {codec}, expected 1 to 4")


def _gzip(packed: bytes, bytes_max: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        # Python makes room for all that is asked for: 32 MiB of it cost a small batch more than unpacking.
        asked = min(_GZIP_RATIO * len(packed), bytes_max) + 1
        unpacked = stream.read(asked)
        if len(unpacked) == asked:
            unpacked += stream.read(bytes_max + 1 - asked)
    if len(unpacked) > bytes_max:
        raise UnpacksTooFarError
    return unpacked


def _snappy(packed: bytes, bytes_max: int) -> Buffer:
    if not packed.startswith(_XERIAL_HEADER):
        return _snappy_block(packed, bytes_max)
    view = memoryview(packed)
    unpacked = bytearray()
    at = len(_XERIAL_HEADER)
    while at < len(packed):
        (size,) = _BLOCK_SIZE.unpack_from(packed, at)
        at += _BLOCK_SIZE.size
        if not 0 <= size <= len(packed) - at:
            raise ValueError(f"a snappy block of {size} bytes, {len(packed) - at} are left")
        unpacked += _snappy_block(view[at : at + size], bytes_max - len(unpacked))
        at += size
    return unpacked


def _snappy_block(packed: Buffer, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(packed) > bytes_max:
        raise UnpacksTooFarError
    return bytes(cramjam.snappy.decompress_raw(packed))


def _into_bounded(
    decompress_into: Callable[[bytes, Buffer], int], packed: bytes, bytes_max: int
) -> memoryview:
    """What a decompressor writes into memory of a size, first into the buffer that is there anyway."""
    kept = memoryview(_kept.buffer)[:bytes_max]
    try:
        return kept[: decompress_into(packed, kept)]
    except cramjam.DecompressionError as error:
        if str(error) != _BUFFER_IS_FULL:
            raise
    if bytes_max > len(kept):
        room = memoryview(mmap.mmap(-1, bytes_max, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        try:
            return room[: decompress_into(packed, room)]
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_IS_FULL:
                raise
    raise UnpacksTooFarError
