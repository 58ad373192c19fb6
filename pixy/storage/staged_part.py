"""What a stage holds of one partition: a file of plain record batches back to back, and what becomes of it in the partition's log.

Until it is published its batches have whatever base offset and leader epoch their writer gave them. Published, a part has a place in
the log, and each batch the offset that follows from it. Nobody waits for the headers in the file to say so: whoever reads a part gives
every batch its offset as it is read. Behind that the log's writer either copies the batches, which are small then, or writes the
headers where they are and makes the file a segment.

Writing the headers again, after a crash in the middle of it, writes the same bytes: the place of a part follows from the entries before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pixy.errors import CorruptData
from pixy.records import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    check_batch,
    patch_batch,
    read_header,
)
from pixy.storage.disk import Disk, File
from pixy.storage.scan import scan_headers
from pixy.storage.segment import Chunk

__all__ = ["StagedPart"]

_COPY_BYTES = 1 << 20
_PATCHED_BYTES = 16
"""Base offset, length and leader epoch."""
_PATCH_READS_BYTES = 27
"""What is read to write these: up to the last offset delta."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part. Every method blocks.

    Attributes:
        path: its file, which is there until the part's place in the log is durable.
        size: how many of the file's bytes belong to it.
        records: offsets that it takes.
        base_offset, leader_epoch: its place in the log, once it has one.
    """

    path: Path
    size: int
    records: int
    base_offset: int = 0
    leader_epoch: int = 0

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.records

    def placed(self, base_offset: int, leader_epoch: int) -> "StagedPart":
        """The same part at a place in the log."""
        return replace(self, base_offset=base_offset, leader_epoch=leader_epoch)

    def check(self, disk: Disk) -> None:
        """Prove every byte.

        Raises:
            CorruptData: the file is missing or short, or a batch is damaged; names file and byte.
        """
        try:
            for _ in self.batches(disk):
                pass
        except FileNotFoundError as error:
            raise CorruptData(f"{self.path} is missing, it was sealed") from error

    def batches(self, disk: Disk) -> Iterator[list[bytearray]]:
        """All batches, each with its offset, about a mebibyte at a time.

        Raises:
            CorruptData: a batch is damaged.
        """
        file = disk.open(self.path)
        try:
            position, offset = 0, self.base_offset
            while position < self.size:
                _, header = next(self._headers(file, position, offset))
                chunk = self._read(file, position, header, _COPY_BYTES)
                yield [bytearray(batch) for batch in chunk.batches]
                position, offset = position + sum(map(len, chunk.batches)), chunk.next_offset
            self._check_end(position, offset)
        finally:
            file.close()

    def read(self, disk: Disk, offset: int, max_bytes: int) -> Chunk:
        """Batches from the one that holds `offset` on, each with its offset: at most `max_bytes`, at least one.

        Raises:
            FileNotFoundError: the file went, because the batches are in a segment.
            CorruptData: a batch is damaged.
        """
        file = disk.open(self.path, background=True)
        try:
            for position, header in self._headers(file, 0, self.base_offset):
                if header.next_offset > offset:
                    return self._read(file, position, header, max_bytes)
        finally:
            file.close()
        raise CorruptData(f"{self.path} has no record batch for offset {offset}")

    def patch(self, file: File) -> Iterator[tuple[int, BatchHeader]]:
        """Write base offset and leader epoch into every header of the part's file; yields size and new header of each batch.

        Raises:
            CorruptData: the file is short, or a header is damaged. What is behind the headers is not read.
        """
        found = file.size()
        if found < self.size:
            raise CorruptData(f"{self.path} ends at byte {found}, {self.size} were expected")
        for position, header in self._headers(file, 0, self.base_offset):
            start = bytearray(file.read_at(HEADER_BYTES, position))
            patch_batch(start, header.base_offset, self.leader_epoch)
            file.write_at([start[:_PATCHED_BYTES]], position)
            yield LENGTH_PREFIX_BYTES + header.length, header

    def _headers(self, file: File, position: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from the one at `position` on, whose offset in the log is `offset`."""
        for at, found in scan_headers(file, self.path, position, self.size):
            header = found._replace(base_offset=offset, leader_epoch=self.leader_epoch)
            if not offset < header.next_offset <= self.end_offset:
                raise CorruptData(
                    f"{self.path} is corrupt at byte {at}: a batch that ends at offset {header.next_offset} of "
                    f"{offset} to {self.end_offset}"
                )
            yield at, header
            offset = header.next_offset
        self._check_end(self.size, offset)

    def _check_end(self, position: int, offset: int) -> None:
        if offset != self.end_offset:
            raise CorruptData(
                f"{self.path} is corrupt at byte {position}: it has {offset - self.base_offset} records, "
                f"{self.records} were sealed"
            )

    def _read(self, file: File, position: int, header: BatchHeader, max_bytes: int) -> Chunk:
        first = LENGTH_PREFIX_BYTES + header.length
        view = memoryview(bytearray(file.read_at(min(max(max_bytes, first), self.size - position), position)))
        batches: list[memoryview] = []
        at, offset = 0, header.base_offset
        while at + HEADER_BYTES <= len(view):
            size = LENGTH_PREFIX_BYTES + read_header(view, at).length
            if size < HEADER_BYTES or at + size > len(view):
                break  # the rest of it comes with the next chunk, or is found to be damaged then
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
            raise CorruptData(f"{self.path} ends at byte {position + len(view)}, {self.size} were expected")
        return Chunk(batches, offset)
