"""The bytes of a journal file. Pure: builds and scans buffers, never touches a file.

All numbers are little-endian. A file begins with a header of 64 bytes:

    byte  size  field
    0     8     magic "PIXYJRNL"
    8     4     format version, 1
    12    4     CRC-32C of bytes 0..11, then of bytes 16..63
    16    8     file number; files are numbered from 1 without holes
    24    16    cluster id
    40    4     node id
    44    20    zeros

Then come flushes back to back. A flush is what one write and one sync made durable: a frame of 40 bytes and its records.

    0     4     magic "FLSH"
    4     4     CRC-32C of the cluster id, then of bytes 8..39
    8     8     flush number; flushes are numbered from 1 without holes over all files
    16    8     file number
    24    8     position of this frame in the file
    32    4     bytes of records that follow
    36    4     number of records that follow

A record is a head of 36 bytes and its payload:

    0     4     length of the payload
    4     4     CRC-32C of bytes 8..end of the payload
    8     1     kind (`RecordKind`)
    9     1     type of the entry (`EntryType`) if the kind is ENTRY or RELOCATED_ENTRY, else 0
    10    2     zeros
    12    8     raft group
    20    8     index
    28    8     term
    36          payload

The cluster id in the frame's checksum is a secret of the node: bytes that a client put into a message are never a valid frame.

Files are preallocated, so what follows the last flush is zeros. Flush n+1 is written only after flush n was synced. What follows from
that for damage is the business of `recovery`, where the decision table is.

What a newer release may change: everything but the magic and the place of the version. A header that says a greater version is therefore
taken for a newer release's whatever its checksum, and nothing else of the file is looked at.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pixy.errors import CorruptData, DataDirectoryError
from pixy.records import crc32c

__all__ = [
    "FILE_HEADER_BYTES",
    "FLUSH_FRAME_BYTES",
    "FORMAT_VERSION",
    "RECORD_HEAD_BYTES",
    "EntryType",
    "FileHeader",
    "Flush",
    "FlushScan",
    "JournalRecord",
    "RecordKind",
    "RecordPlace",
    "file_header",
    "find_later_flush",
    "first_flush_number",
    "flush_frame",
    "flush_number_at",
    "is_zero",
    "journal_record",
    "read_file_header",
    "read_flush",
    "read_flush_frame",
    "read_records",
    "record_head",
]

FORMAT_VERSION = 1
FILE_HEADER_BYTES = 64
FLUSH_FRAME_BYTES = 40
RECORD_HEAD_BYTES = 36

_FILE_MAGIC = b"PIXYJRNL"
_FLUSH_MAGIC = b"FLSH"
_FILE_START = struct.Struct("<8sII")
_FILE_CRC_AT = 12
_FILE_REST = struct.Struct("<Q16sI20x")
_CLUSTER_ID = slice(24, 40)
_FLUSH_START = struct.Struct("<4sI")
_FLUSH_REST = struct.Struct("<QQQII")
_RECORD_START = struct.Struct("<II")
_RECORD_REST = struct.Struct("<BBHQQQ")
_RECORD_HEAD = struct.Struct("<IIBBHQQQ")

Buffer = bytes | bytearray | memoryview


class RecordKind(IntEnum):
    """What a journal record is. A number is never given another meaning; an unknown one is refused."""

    ENTRY = 1
    HARD_STATE = 2
    APPLIED_POSITIONS = 3
    RELOCATED_ENTRY = 4
    """An entry that was written again, so that the file which held it can go. It replaces nothing: see `journal_entries`."""


class EntryType(IntEnum):
    """What the payload of a Raft entry is. Only record batches take offsets."""

    EMPTY = 0
    RECORD_BATCH = 1
    COMMAND = 2


_KINDS = frozenset(map(int, RecordKind))
_ENTRY_TYPES = frozenset(map(int, EntryType))


class FileHeader(NamedTuple):
    """Who a journal file belongs to, and its place in the sequence."""

    version: int
    file_number: int
    cluster_id: bytes
    node_id: int


RecordPlace = tuple[int, int, int, int, int, int, int]
"""A record in a buffer: its first byte, the byte behind it, kind, entry type, raft group, index, term.

No `NamedTuple`: making one takes as long as the checksum of a small record.
"""


@dataclass(slots=True)
class JournalRecord:
    """One record. `payload` is a view into the buffer that it was read from, or a copy: who makes the record says which."""

    kind: RecordKind
    entry_type: EntryType
    raft_group: int
    index: int
    term: int
    payload: bytes | memoryview


class Flush(NamedTuple):
    """The records of one flush, and the byte behind it."""

    records: list[RecordPlace]
    end: int


def file_header(file_number: int, cluster_id: bytes, node_id: int) -> bytes:
    """The header of a new file."""
    rest = _FILE_REST.pack(file_number, cluster_id, node_id)
    start = _FILE_START.pack(_FILE_MAGIC, FORMAT_VERSION, 0)
    return start[:_FILE_CRC_AT] + _header_crc(start + rest).to_bytes(4, "little") + rest


def _header_crc(header: Buffer) -> int:
    """The checksum of every byte of a file header but the checksum's own."""
    view = memoryview(header)
    checksum: int = crc32c(view[_FILE_START.size : FILE_HEADER_BYTES], crc32c(view[:_FILE_CRC_AT]))
    return checksum


def read_file_header(buffer: Buffer) -> FileHeader | str:
    """The header of a file, or what is wrong with it.

    Raises:
        DataDirectoryError: a newer release wrote the file, or it has a version that none ever wrote.
    """
    version = _version(buffer)
    if version is not None and version > FORMAT_VERSION:
        raise DataDirectoryError(
            f"format version {version} is newer than {FORMAT_VERSION}, which this release reads"
        )
    if len(buffer) < FILE_HEADER_BYTES:
        return f"{len(buffer)} bytes are shorter than the file header of {FILE_HEADER_BYTES}"
    magic, _, crc = _FILE_START.unpack_from(buffer)
    if version is None:
        return f"file begins with {bytes(magic)!r}, expected {_FILE_MAGIC!r}"
    if _header_crc(buffer) != crc:
        return "the file header's checksum is wrong"
    if version != FORMAT_VERSION:
        raise DataDirectoryError(f"format version {version} was never written, expected {FORMAT_VERSION}")
    return FileHeader(version, *_FILE_REST.unpack_from(buffer, _FILE_START.size))


def _version(buffer: Buffer) -> int | None:
    """The format version that a file says it has; None if it is too short for one, or not a journal file."""
    if len(buffer) < _FILE_CRC_AT or bytes(buffer[: len(_FILE_MAGIC)]) != _FILE_MAGIC:
        return None
    return int.from_bytes(buffer[len(_FILE_MAGIC) : _FILE_CRC_AT], "little")


def first_flush_number(buffer: Buffer) -> int | None:
    """The number of the flush that begins right behind the file header, None if there is none."""
    return flush_number_at(buffer, FILE_HEADER_BYTES)


def flush_number_at(buffer: Buffer, at: int) -> int | None:
    """The number of the flush that begins at byte `at` of a file, None if there is none."""
    view = memoryview(buffer)
    if len(view) < at + FLUSH_FRAME_BYTES:
        return None
    frame = read_flush_frame(view, at)
    return None if frame is None else frame[0]


def flush_frame(
    cluster_id: bytes, flush_number: int, file_number: int, position: int, size: int, records: int
) -> bytes:
    """The frame in front of `size` bytes that hold `records` records."""
    rest = _FLUSH_REST.pack(flush_number, file_number, position, size, records)
    return _FLUSH_START.pack(_FLUSH_MAGIC, crc32c(rest, crc32c(cluster_id))) + rest


def record_head(kind: int, entry_type: int, raft_group: int, index: int, term: int, payload: Buffer) -> bytes:
    """The head in front of `payload`."""
    rest = _RECORD_REST.pack(kind, entry_type, 0, raft_group, index, term)
    return _RECORD_START.pack(len(payload), crc32c(payload, crc32c(rest))) + rest


class FlushScan:
    """Reads flushes from byte `at` of a file on, up to the first byte that does not begin the expected one.

    Iterating gives the records of each flush, once. What the attributes say is known behind the last one.

    Attributes:
        end: byte behind the last valid flush.
        next_flush: the flush number that is expected there.
        damage: why the byte at `end` is not the start of a flush, empty if only zeros follow.
        later_flush: position of a valid flush from `end` on that is not the expected one, or None. Bytes that no crash tears.
        last_flush: where the last valid flush begins, None if there is none.
    """

    def __init__(
        self, buffer: Buffer, file_number: int, next_flush: int, at: int = FILE_HEADER_BYTES
    ) -> None:
        self._view = memoryview(buffer)
        self._file_number = file_number
        self.end = at
        self.next_flush = next_flush
        self.damage = ""
        self.later_flush: int | None = None
        self.last_flush: int | None = None

    def __iter__(self) -> Iterator[list[RecordPlace]]:
        """The records of one flush after the other.

        Raises:
            CorruptData: as `read_flush`.
        """
        while not isinstance(
            flush := read_flush(self._view, self.end, self._file_number, self.next_flush), str
        ):
            yield flush.records
            self.last_flush, self.end = self.end, flush.end
            self.next_flush += 1
        self.damage = flush
        if flush:
            self.later_flush = find_later_flush(self._view, self.end, self._file_number, self.next_flush)


def read_flush(view: memoryview, at: int, file_number: int, flush_number: int) -> Flush | str:
    """The flush at byte `at` of a file; the reason if it is not the expected one or is damaged; "" if only zeros follow.

    Raises:
        CorruptData: every byte is what was written, but it says what this release cannot have written: a record of an unknown
            kind, another number of records than there are.
    """
    found = _flush_at(view, at, file_number, flush_number)
    if isinstance(found, str):
        return found
    end, count = found
    records = read_records(view, at + FLUSH_FRAME_BYTES, end)
    if isinstance(records, str):
        return records
    if len(records) != count:
        raise CorruptData(
            f"flush {flush_number} at byte {at} has {len(records)} records, its frame says {count}"
        )
    return Flush(records, end)


def _flush_at(view: memoryview, at: int, file_number: int, flush_number: int) -> tuple[int, int] | str:
    """Byte behind the flush at `at` and its number of records; the reason if it is another one; "" if only zeros follow."""
    if at + FLUSH_FRAME_BYTES > len(view) or bytes(view[at : at + 4]) == b"\0\0\0\0":
        return "" if is_zero(view[at:]) else "neither a flush nor zeros"
    frame = read_flush_frame(view, at)
    if frame is None:
        return "no valid flush frame"
    number, in_file, position, size, count = frame
    if (number, in_file, position) != (flush_number, file_number, at):
        return (
            f"flush {number} of file {in_file} at byte {position}, "
            f"expected flush {flush_number} of file {file_number} at byte {at}"
        )
    end = at + FLUSH_FRAME_BYTES + size
    if end > len(view):
        return f"flush {number} has {size} bytes, the file ends before"
    return end, count


def read_flush_frame(view: memoryview, at: int) -> tuple[int, int, int, int, int] | None:
    """The frame at `at` of a whole file: its numbers from the flush's on. None if there is no valid one."""
    magic, crc = _FLUSH_START.unpack_from(view, at)
    if magic != _FLUSH_MAGIC:
        return None
    if crc32c(view[at + 8 : at + FLUSH_FRAME_BYTES], crc32c(view[_CLUSTER_ID])) != crc:
        return None
    return _FLUSH_REST.unpack_from(view, at + 8)


def read_records(view: memoryview, at: int, end: int) -> list[RecordPlace] | str:
    """The records that fill a buffer from byte `at` to `end`, each checked; the reason if one of them is damaged.

    Raises:
        CorruptData: a record is whole and of a kind that this release does not know.
    """
    places: list[RecordPlace] = []
    head = _RECORD_HEAD.unpack_from
    while at < end:
        if at + RECORD_HEAD_BYTES > end:
            return "a record's head is cut off"
        size, crc, kind, entry_type, _, raft_group, index, term = head(view, at)
        behind = at + RECORD_HEAD_BYTES + size
        if behind > end or crc32c(view[at + 8 : behind]) != crc:
            return "a record's checksum is wrong"
        if kind not in _KINDS or entry_type not in _ENTRY_TYPES:
            raise CorruptData(
                f"a valid record has kind {kind} and entry type {entry_type}, which this release does not know: "
                "a newer one wrote it"
            )
        places.append((at, behind, kind, entry_type, raft_group, index, term))
        at = behind
    return places


def journal_record(view: memoryview, place: RecordPlace) -> JournalRecord:
    """The record at a place of a buffer; its payload is a view into it."""
    at, end, kind, entry_type, raft_group, index, term = place
    payload = view[at + RECORD_HEAD_BYTES : end]
    return JournalRecord(RecordKind(kind), EntryType(entry_type), raft_group, index, term, payload)


def find_later_flush(view: memoryview, after: int, file_number: int, flush_number: int) -> int | None:
    """Position of a valid frame of this file from `after` on that has another number than `flush_number`.

    No crash leaves one: it is later, and was written when what is before it was durable; or the file is older than that number.
    """
    data = bytes(view[after:])
    found = data.find(_FLUSH_MAGIC)
    while found >= 0:
        at = after + found
        if at + FLUSH_FRAME_BYTES <= len(view):
            frame = read_flush_frame(view, at)
            if frame is not None and frame[0] != flush_number and frame[1:3] == (file_number, at):
                return at
        found = data.find(_FLUSH_MAGIC, found + 1)
    return None


def is_zero(view: memoryview) -> bool:
    """Whether a buffer holds nothing but zeros."""
    step = 1 << 16
    zeros = bytes(step)
    # Bytes are compared by memcmp, views item by item: seventy times slower.
    return all(bytes(view[at : at + step]) == zeros[: len(view) - at] for at in range(0, len(view), step))
