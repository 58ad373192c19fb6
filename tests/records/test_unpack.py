"""Decompression stays within its memory limit, regardless of a batch's size fields."""

import errno
import gzip
import mmap
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import cramjam
import pytest

from pixy.errors import Unavailable, UnpackedTooLarge
from pixy.records import (
    COMPRESSION,
    UNPACKED_BYTES_MAX,
    BatchLimits,
    NewRecord,
    build_batch,
    check_new_batches,
    read_header,
    read_records,
)
from pixy.records.unpack import UnpackLimitError, unpack

XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def snappy_raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def snappy_xerial(data: bytes) -> bytes:
    cuts = [*range(0, len(data), 32_768), len(data)]
    blocks = [snappy_raw(data[begin:end]) for begin, end in pairwise(cuts)]
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def lz4(data: bytes) -> bytes:
    return bytes(cramjam.lz4.compress(data))


def zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def zstd_without_a_size(data: bytes) -> bytes:
    compressor = cramjam.zstd.Compressor()
    compressor.compress(data)
    return bytes(compressor.finish())


def in_two(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A stream of two frames with half of the size in each size field, if there is one."""
    return lambda data: compress(data[: len(data) // 2]) + compress(data[len(data) // 2 :])


STREAMS = {
    "gzip": (1, gzip.compress),
    "gzip in two members": (1, in_two(gzip.compress)),
    "snappy raw": (2, snappy_raw),
    "snappy xerial": (2, snappy_xerial),
    "lz4": (3, lz4),
    "zstd": (4, zstd),
    "zstd in two frames": (4, in_two(zstd)),
    "zstd without a size": (4, zstd_without_a_size),
}
each_stream = pytest.mark.parametrize(("codec", "compress"), STREAMS.values(), ids=STREAMS)

SIZES = [1, 1000, 100_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000]
"""Below, around and above the size of the thread's buffer."""


@pytest.mark.slow
@each_stream
@pytest.mark.parametrize("size", SIZES)
def test_output_up_to_the_limit_is_decompressed_and_one_byte_more_is_not(
    codec: int, compress: Callable[[bytes], bytes], size: int
) -> None:
    data = (b"some text that repeats itself, " * (size // 30 + 1))[:size]
    packed = compress(data)
    assert bytes(unpack(codec, packed, size)) == data
    assert bytes(unpack(codec, packed, 2 * size)) == data
    with pytest.raises(UnpackLimitError):
        unpack(codec, packed, size - 1)


@each_stream
def test_corruption_is_not_reported_as_too_large(codec: int, compress: Callable[[bytes], bytes]) -> None:
    packed = compress(bytes(range(256)) * 5000)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each library has its own, none of them ours
        unpack(codec, packed[:-9], 10_000_000)
    assert not isinstance(caught.value, UnpackLimitError)


def test_earlier_output_in_the_buffer_does_not_leak() -> None:
    unpack(4, zstd(b"x" * 10_000), 20_000)
    assert bytes(unpack(4, zstd(b"short"), 20_000)) == b"short"


UNDER_A_LIMIT = """
import resource, struct, sys
from pixy.errors import UnpackedTooLarge
from pixy.records import UNPACKED_BYTES_MAX, build_batch, crc32c, read_records

codec, packed = int(sys.argv[1]), sys.stdin.buffer.read()
batch = build_batch([])[:61] + packed
struct.pack_into(">i", batch, 8, len(batch) - 12)
struct.pack_into(">h", batch, 21, codec)
struct.pack_into(">ii", batch, 23, 0, 0)
struct.pack_into(">i", batch, 57, 1)
struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
with open("/proc/self/statm") as statm:
    taken = int(statm.read().split()[0]) * resource.getpagesize()
limit = taken + 3 * UNPACKED_BYTES_MAX
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    list(read_records(batch))
except UnpackedTooLarge as error:
    print(error)
"""


@pytest.mark.process
@each_stream
def test_a_decompression_bomb_is_rejected_before_it_takes_memory(
    codec: int, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(bytes(8 * UNPACKED_BYTES_MAX))
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT, str(codec)], input=bomb, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    expected = (
        f"the next batch is at 1: its {61 + len(bomb)} bytes decompress to more than {UNPACKED_BYTES_MAX}"
    )
    assert expected in done.stdout.decode()


@pytest.mark.parametrize("codec", [codec for codec in COMPRESSION.values() if codec])
def test_a_reader_may_set_a_lower_limit(codec: int) -> None:
    batch = build_batch([NewRecord(None, b"value " * 1000, (), 7)], codec)
    assert len(list(read_records(batch, 7000))) == 1
    reading = read_records(batch, 6000)
    with pytest.raises(UnpackedTooLarge, match="decompress to more than 6000"):
        next(reading)


@pytest.mark.slow
def test_every_batch_built_by_pixy_can_be_read() -> None:
    batch = build_batch([NewRecord(None, bytes(UNPACKED_BYTES_MAX), (), 7)], COMPRESSION["zstd"])
    assert read_header(batch).codec == 0
    (record,) = read_records(batch)
    assert record.value is not None
    assert len(record.value) == UNPACKED_BYTES_MAX


@pytest.mark.parametrize("size", [-1, -4, 100, 2**31 - 1])
def test_a_snappy_block_beyond_the_end_is_rejected(size: int) -> None:
    with pytest.raises(ValueError, match=f"snappy block of {size} bytes with 3 bytes left"):
        unpack(2, XERIAL + struct.pack(">i", size) + b"abc", 1000)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_lack_of_memory_is_not_the_fault_of_the_bytes(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    batch = build_batch([NewRecord(None, bytes(2 << 20), (), 1)], COMPRESSION[codec])
    monkeypatch.setattr(mmap, "mmap", no_memory)
    with pytest.raises(Unavailable, match="not enough memory"):
        list(read_records(batch))
    with pytest.raises(Unavailable, match="not enough memory"):
        check_new_batches(batch, BatchLimits(4 << 20))
    monkeypatch.undo()
    assert [record.value for record in read_records(batch)] == [bytes(2 << 20)]
