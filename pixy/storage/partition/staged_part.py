"""The part of a stage for one partition: plain record batches back to back, alone in a file or, as
a piece of a replicated stage, among others.

Until the stage is published, base offset and leader epoch of the batches are arbitrary. A published
part has a position in the log, which determines the offset of each batch. Reads do not wait for the
headers in the file: they patch each batch with its offset in memory. Later the log's writer either
copies the batches of a small part, or patches the headers in the file and makes it a segment. A
piece among others is always copied.

After a crash, the headers are patched again with the same bytes: the position of a part follows
from the entries before it.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.records import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    check_batch,
    patch_batch,
    read_header,
)
from pixy.storage.disk import Disk, File, lost_is_corrupt, scan_headers
from pixy.storage.partition.segment import Chunk

_COPY_BYTES = 1 << 20
_PATCHED_BYTES = 16
"""Base offset, length and leader epoch."""


class StagedPart(NamedTuple):
    """A part. Every method blocks.

    A publication makes thousands of them in one step, so it is a tuple, and its path may be a text.

    Attributes:
        file: its file, which exists until the part is durable in the log.
        size: number of the file's bytes that belong to it.
        records: number of offsets that it takes.
        base_offset, leader_epoch: its position in the log, once it has one.
        begin: byte of the file where it begins.
    """

    file: Path | str
    size: int
    records: int
    base_offset: int = 0
    leader_epoch: int = 0
    begin: int = 0

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.records

    @property
    def end(self) -> int:
        """Byte of the file behind it."""
        return self.begin + self.size

    def placed(self, base_offset: int, leader_epoch: int) -> "StagedPart":
        """The same part at a position in the log."""
        return StagedPart(self.file, self.size, self.records, base_offset, leader_epoch, self.begin)

    def check(self, disk: Disk) -> None:
        """Verify every byte.

        Raises:
            CorruptData: the file is missing or short, or a batch is damaged; the message names file
                and byte.
        """
        try:
            for _ in self.batches(disk):
                pass
        except FileNotFoundError as error:
            raise CorruptData(f"{self.path} is missing, it was sealed") from error

    def batches(self, disk: Disk) -> Iterator[list[bytearray]]:
        """Yield all batches with their offsets, about 1 MiB at a time.

        Raises:
            CorruptData: a batch is damaged, or cannot be read.
        """
        with lost_is_corrupt(self.path), closing(disk.open(self.path)) as file:
            position, offset = self.begin, self.base_offset
            while position < self.end:
                _, header = next(self._headers(file, position, offset))
                chunk = self._read(file, position, header, _COPY_BYTES)
                yield [bytearray(batch) for batch in chunk.batches]
                position, offset = position + sum(map(len, chunk.batches)), chunk.next_offset
            self._check_end(position, offset)

    def read(self, disk: Disk, offset: int, max_bytes: int) -> Chunk:
        """Read batches with their offsets, from the one with `offset` on.

        At most `max_bytes`, but at least one batch.

        Raises:
            FileNotFoundError: the file was removed, because the batches are in a segment.
            CorruptData: a batch is damaged.
        """
        file = disk.open(self.path, background=True)
        try:
            for position, header in self._headers(file, self.begin, self.base_offset):
                if header.next_offset > offset:
                    return self._read(file, position, header, max_bytes)
        finally:
            file.close()
        raise CorruptData(f"{self.path} has no record batch for offset {offset}")

    def patch(self, file: File) -> Iterator[tuple[int, BatchHeader]]:
        """Patch base offset and leader epoch of every header in the file of the part.

        Yields size and new header of each batch. The bytes behind the headers are not verified.

        Raises:
            CorruptData: the file is short, or a header is damaged, or cannot be read.
            OSError: one cannot be written, which is no damage.
        """
        for position, header, start in self._patched(file):
            file.write_at([start], position)
            yield LENGTH_PREFIX_BYTES + header.length, header

    def _patched(self, file: File) -> Iterator[tuple[int, BatchHeader, bytearray]]:
        """Position and header of each batch, and its new first bytes."""
        with lost_is_corrupt(self.path):
            found = file.size()
            if found < self.end:
                raise CorruptData(f"{self.path} ends at byte {found}, {self.end} were expected")
            for position, header in self._headers(file, self.begin, self.base_offset):
                start = bytearray(file.read_at(HEADER_BYTES, position))
                patch_batch(start, header.base_offset, self.leader_epoch)
                yield position, header, start[:_PATCHED_BYTES]

    def _headers(self, file: File, position: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from the one at `position` on, which has `offset`."""
        for at, found in scan_headers(file, self.path, position, self.end):
            header = found._replace(base_offset=offset, leader_epoch=self.leader_epoch)
            if not offset < header.next_offset <= self.end_offset:
                raise CorruptData(
                    f"{self.path} is corrupt at byte {at}: a batch that ends at offset {header.next_offset} of "
                    f"{offset} to {self.end_offset}"
                )
            yield at, header
            offset = header.next_offset
        self._check_end(self.end, offset)

    def _check_end(self, position: int, offset: int) -> None:
        if offset != self.end_offset:
            raise CorruptData(
                f"{self.path} is corrupt at byte {position}: it has {offset - self.base_offset} records, "
                f"{self.records} were sealed"
            )

    def _read(self, file: File, position: int, header: BatchHeader, max_bytes: int) -> Chunk:
        first = LENGTH_PREFIX_BYTES + header.length
        view = memoryview(bytearray(file.read_at(min(max(max_bytes, first), self.end - position), position)))
        batches: list[memoryview] = []
        at, offset = 0, header.base_offset
        while at + HEADER_BYTES <= len(view):
            size = LENGTH_PREFIX_BYTES + read_header(view, at).length
            if size < HEADER_BYTES or at + size > len(view):
                break  # the next chunk has all of it, or finds the damage
            batch = view[at : at + size]
            try:
                check_batch(batch)
            except CorruptData as error:
                raise CorruptData(f"{self.path} is corrupt at byte {position + at}: {error}") from error
            patch_batch(batch, offset, self.leader_epoch)
            batches.append(batch)
            at, offset = at + size, read_header(batch).next_offset
            if offset > self.end_offset:
                raise CorruptData(
                    f"{self.path} is corrupt at byte {position + at}: it has more records than the {self.records} that "
                    "were sealed"
                )
        if not batches:
            raise CorruptData(f"{self.path} ends at byte {position + len(view)}, {self.end} were expected")
        return Chunk(batches, offset)
