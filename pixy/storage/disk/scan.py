"""Scans of a file of record batches: all batches, verified and read in large blocks, or the headers
alone. Independent of offsets and indexes."""

import errno
from collections.abc import Iterator
from pathlib import Path

from pixy.errors import CorruptData
from pixy.records import HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchHeader, check_batch, crc32c, read_header
from pixy.storage.disk.disk import Disk, File, is_unreadable

_BLOCK_BYTES = 1 << 20
_HEADERS_BYTES = 65_536
_MAGIC = 2
_CRC_FROM = 21


ScannedBatch = tuple[int, BatchHeader, memoryview, str]
"""A batch in a file: position, header, bytes, and the damage in words, empty if there is none.

The length of a damaged batch is reliable. Not a `NamedTuple`, whose creation takes as long as the
checksum of a small batch.
"""


def scan_batches(disk: Disk, path: Path, size: int | None = None) -> Iterator[ScannedBatch]:
    """Scan the batches in the first `size` bytes of a file, or in all of it. Blocks.

    A view is valid until the next one is requested.

    Raises:
        CorruptData: no batch begins where the one before ends, or the device has lost bytes, so
            nothing behind can be found; the message names the byte.
        OSError: the file cannot be read for another reason; ENOMEM: a batch does not fit into
            memory. That is no damage.
    """
    file = disk.open(path)
    try:
        yield from _scan(file, path, file.size() if size is None else size)
    finally:
        file.close()


def _scan(file: File, path: Path, size: int) -> Iterator[ScannedBatch]:
    position, wanted = 0, _BLOCK_BYTES
    while position < size:
        requested = min(wanted, size - position)
        try:
            block = memoryview(file.read_at(requested, position))
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise CorruptData(f"byte {position} cannot be read: {error.strerror}") from error
        except MemoryError as error:
            fault = f"a batch of {requested} bytes at byte {position} does not fit into memory"
            raise OSError(errno.ENOMEM, fault, str(path)) from error
        if requested < HEADER_BYTES or len(block) < requested:
            raise CorruptData(f"corrupt at byte {position}: {len(block)} bytes are left, too few for a batch")
        at, wanted = 0, _BLOCK_BYTES
        while at + HEADER_BYTES <= len(block):
            header = read_header(block, at)
            length = LENGTH_PREFIX_BYTES + header.length
            if length < HEADER_BYTES or position + at + length > size:
                raise CorruptData(
                    f"corrupt at byte {position + at}: a batch that says it has {length} bytes, "
                    f"{size - position - at} are left"
                )
            if at + length > len(block):
                wanted = max(wanted, length)
                break  # the next block has all of it
            batch = block[at : at + length]
            yield position + at, header, batch, _damage(batch, header)
            at += length
        position += at


def _damage(batch: memoryview, header: BatchHeader) -> str:
    if (
        header.magic == _MAGIC
        and header.last_offset_delta >= 0
        and header.records >= 0
        and crc32c(batch[_CRC_FROM:]) == header.crc
    ):
        return ""  # takes half the time of `check_batch`
    try:
        check_batch(batch)
    except CorruptData as error:
        return str(error)
    return ""


def scan_headers(file: File, path: Path, position: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
    """Scan position and header of each batch from `position` to `size`, reading in blocks.

    The bytes behind a header are not verified.

    Raises:
        CorruptData: the file is shorter, or no batch begins where the one before ends.
    """
    block, block_at = b"", position
    while position + HEADER_BYTES <= size:
        at = position - block_at
        if at + HEADER_BYTES > len(block):
            block, block_at, at = file.read_at(_HEADERS_BYTES, position), position, 0
        if len(block) < HEADER_BYTES:
            raise CorruptData(f"{path} ends at byte {position + len(block)}, {size} were expected")
        header = read_header(block, at)
        check_bounds(header, path, position, size)
        yield position, header
        position += LENGTH_PREFIX_BYTES + header.length
    if position < size:
        raise CorruptData(
            f"{path} is corrupt at byte {position}: {size - position} bytes are no record batch"
        )


def check_bounds(header: BatchHeader, path: Path, position: int, size: int) -> None:
    """Verify that the header at a position can be that of a batch within `size` bytes.

    Raises:
        CorruptData: its magic or length is impossible.
    """
    length = LENGTH_PREFIX_BYTES + header.length
    if header.magic != _MAGIC or length < HEADER_BYTES or position + length > size:
        raise CorruptData(
            f"{path} is corrupt at byte {position}: a batch with magic {header.magic} and {length} bytes, "
            f"{size - position} are left"
        )
