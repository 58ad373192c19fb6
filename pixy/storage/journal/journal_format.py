"""Byte format of journal files. Pure: builds and scans buffers, never touches a file.

All numbers are little-endian. A file begins with a header of 64 bytes:

    byte  size  field
    0     8     magic "PIXYJRNL"
    8     4     format version, 2; of all records in the file
    12    4     CRC-32C of bytes 0..11, then of bytes 16..63
    16    8     file number; files are numbered from 1 without holes
    24    16    cluster id
    40    4     node id
    44    20    zeros

Flushes follow back to back. A flush is the unit of one write and one sync: a frame of 40 bytes and
its records.

    0     4     magic "FLSH"
    4     4     CRC-32C of the cluster id, then of bytes 8..39
    8     8     flush number; flushes are numbered from 1 without holes over all files
    16    8     file number
    24    8     position of this frame in the file
    32    4     bytes of records that follow
    36    4     number of records that follow

A record is a head of 60 bytes and its payload:

    0     4     length of the payload
    4     4     CRC-32C of bytes 8..end of the payload
    8     1     kind (`RecordKind`)
    9     1     type of the entry (`EntryType`), original or relocated; of other kinds 0
    10    2     zeros
    12    8     raft group
    20    8     index
    28    8     term
    36    8     of an entry: commit index of its raft group that was known when it was written
    44    4     of an entry: node id of its proposal (`ProposalId`); zeros from here on: it has none
    48    4     of an entry: incarnation of its proposal
    52    8     of an entry: sequence of its proposal
    60          payload

Bytes 36..59 of other kinds are zeros. The commit index rides with the entries, so it never needs a
record or a flush of its own.

Version 1 is read and no longer written. Its heads have 36 bytes, the first 36 of these, and it
knows the kinds up to RELOCATED_ENTRY and the types up to COMMAND. Its record batches have neither
base offset nor leader epoch; those of version 2 have both.

The cluster id in the frame's checksum is a secret of the node: a message of a client never contains
a valid frame.

Files are preallocated, so zeros follow the last flush. Flush n+1 is written only after flush n was
synced. The consequences for damage are in the decision table of `journal_scan`.

A newer release may change everything but the magic and the position of the version. Hence a header
with a greater version counts as written by a newer release, whatever its checksum, and nothing else
in the file is read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pixy.entry_ids import ProposalId
from pixy.errors import CorruptData, DataDirectoryError
from pixy.records import crc32c

FORMAT_VERSION = 2
"""Version of new files."""
VERSION_WITH_OFFSETS = 2
"""First version in which record batches have base offset and leader epoch."""
FILE_HEADER_BYTES = 64
FLUSH_FRAME_BYTES = 40
RECORD_HEAD_BYTES = 60
"""Size of a record's head in new files; see `head_bytes`."""

_FILE_MAGIC = b"PIXYJRNL"
_FLUSH_MAGIC = b"FLSH"
_FILE_START = struct.Struct("<8sII")
_FILE_CRC_AT = 12
_FILE_REST = struct.Struct("<Q16sI20x")
_CLUSTER_ID = slice(24, 40)
_FLUSH_START = struct.Struct("<4sI")
_FLUSH_REST = struct.Struct("<QQQII")
pack_start = struct.Struct("<II").pack
"""Encodes the first bytes of a record's head, up to its checksum."""
pack_identified = struct.Struct("<BBHQQQQIIQ").pack
"""Encodes the rest of it, with a proposal."""
pack_unidentified = struct.Struct("<BBHQQQQ16x").pack
"""Encodes the rest of it, without a proposal."""
_PROPOSAL = struct.Struct("<IIQ")
_KIND_AT, _GROUP_AT, _PROPOSAL_AT = 8, 12, 44

Buffer = bytes | bytearray | memoryview


class RecordKind(IntEnum):
    """Kind of a journal record. Numbers are never reused; an unknown one is refused."""

    ENTRY = 1
    HARD_STATE = 2
    APPLIED_POSITIONS = 3
    RELOCATED_ENTRY = 4
    """A copy of an entry, made before the original's file is removed; see `journal_entries`."""
    LOG_RESET = 5
    """The group's log begins behind (index, term); the payload is its configuration there."""
    RELOCATED_LOG_RESET = 6
    """A copy of the newest reset, made before its file is removed; see `journal_entries`."""
    INCARNATION = 7
    """Number of a start of the node, in the index."""
    PEER_STARTS = 8
    """Newest known starts of the other nodes; the newest record counts. Only nodes that have met
    others write it. A release without it refuses it, as any unknown kind, and has to: it would not
    recognize an older self of another node.
    """
    REPLICA_GONE = 9
    """A replica has left its raft group: voids all records of the group before it, but for term and
    vote, which are in the payload; see `journal_groups`. Written again before its file is removed,
    as long as the group may come back. A release without it refuses it, and has to: a replica that
    comes back would take the state of before for its own.
    """


class EntryType(IntEnum):
    """Type of a Raft entry's payload. Only record batches take offsets."""

    EMPTY = 0
    RECORD_BATCH = 1
    COMMAND = 2
    CONF_CHANGE = 3
    CONF_CHANGE_V2 = 4
    STAGED_PIECE = 5
    """Its bytes are in a file of `staging`; the payload says which."""
    RECORD_BATCHES = 6
    """Several record batches, back to back."""


ENTRY_KINDS = (RecordKind.ENTRY, RecordKind.RELOCATED_ENTRY)
"""Kinds with an entry type, a commit index and a proposal."""


class _Layout(NamedTuple):
    """Format version of records."""

    head: struct.Struct
    kinds: frozenset[int]
    entry_types: frozenset[int]


_LAYOUTS = {
    1: _Layout(
        struct.Struct("<IIBBHQQQ"),
        frozenset(range(1, RecordKind.RELOCATED_ENTRY + 1)),
        frozenset(range(EntryType.COMMAND + 1)),
    ),
    2: _Layout(
        struct.Struct("<IIBBHQQQQ16x"), frozenset(map(int, RecordKind)), frozenset(map(int, EntryType))
    ),
}


def head_bytes(version: int) -> int:
    """Size of a record's head in files of a format version."""
    return _LAYOUTS[version].head.size


class FileHeader(NamedTuple):
    """Owner of a journal file, and its number in the sequence."""

    version: int
    file_number: int
    cluster_id: bytes
    node_id: int


RecordPlace = tuple[int, int, int, int, int, int, int, int]
"""A record in a buffer: first byte, the byte behind it, kind, entry type, raft group, index, term,
commit index.

Not a `NamedTuple`, whose creation takes as long as the checksum of a small record.
"""

UnitRecord = tuple[int, int, int, int, int, int, tuple[int, int, int] | None, Buffer]
"""A record to write: kind, entry type, raft group, index, term, commit index, proposal (node id,
incarnation, sequence; None if there is none), payload.

Of other kinds than entries, entry type and commit index are 0, and there is no proposal. Not a
`NamedTuple` either.
"""


@dataclass(slots=True)
class JournalRecord:
    """One record that was read.

    Attributes:
        payload: a copy or a view into the source buffer: its creator says which.
        version: format version of its file. Record batches of version 1 have no offsets yet.
        commit: of an entry, commit index that was known when it was written; else 0.
        proposal: of an entry, identity of its proposal; None if it has none.
    """

    kind: RecordKind
    entry_type: EntryType
    raft_group: int
    index: int
    term: int
    payload: bytes | memoryview
    version: int = FORMAT_VERSION
    commit: int = 0
    proposal: ProposalId | None = None


class Flush(NamedTuple):
    """The records of one flush, and the byte behind it."""

    records: list[RecordPlace]
    end: int


def file_header(file_number: int, cluster_id: bytes, node_id: int) -> bytes:
    """Encode the header of a file."""
    rest = _FILE_REST.pack(file_number, cluster_id, node_id)
    start = _FILE_START.pack(_FILE_MAGIC, FORMAT_VERSION, 0)
    return start[:_FILE_CRC_AT] + _header_crc(start + rest).to_bytes(4, "little") + rest


def _header_crc(header: Buffer) -> int:
    """Checksum of all bytes of a file header except its own."""
    view = memoryview(header)
    checksum: int = crc32c(view[_FILE_START.size : FILE_HEADER_BYTES], crc32c(view[:_FILE_CRC_AT]))
    return checksum


def read_file_header(buffer: Buffer) -> FileHeader | str:
    """Decode the header of a file; returns the reason if it is damaged.

    Raises:
        DataDirectoryError: a newer release wrote the file, or its version never existed.
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
    if version not in _LAYOUTS:
        raise DataDirectoryError(
            f"format version {version} was never written, expected 1 to {FORMAT_VERSION}"
        )
    return FileHeader(version, *_FILE_REST.unpack_from(buffer, _FILE_START.size))


def _version(buffer: Buffer) -> int | None:
    """Format version of a file; None if the file is too short, or not a journal file."""
    if len(buffer) < _FILE_CRC_AT or bytes(buffer[: len(_FILE_MAGIC)]) != _FILE_MAGIC:
        return None
    return int.from_bytes(buffer[len(_FILE_MAGIC) : _FILE_CRC_AT], "little")


def first_flush_number(buffer: Buffer) -> int | None:
    """Number of the first flush, right behind the file header; None if there is none."""
    return flush_number_at(buffer, FILE_HEADER_BYTES)


def flush_number_at(buffer: Buffer, at: int) -> int | None:
    """Number of the flush at byte `at` of a file, None if there is none."""
    view = memoryview(buffer)
    if len(view) < at + FLUSH_FRAME_BYTES:
        return None
    frame = read_flush_frame(view, at, view[_CLUSTER_ID])
    return None if frame is None else frame[0]


def flush_frame(
    cluster_id: bytes, flush_number: int, file_number: int, position: int, size: int, records: int
) -> bytes:
    """Encode the frame of a flush with `records` records of `size` bytes."""
    rest = _FLUSH_REST.pack(flush_number, file_number, position, size, records)
    return _FLUSH_START.pack(_FLUSH_MAGIC, crc32c(rest, crc32c(cluster_id))) + rest


def record_head(record: UnitRecord) -> bytes:
    """Encode the head of a record."""
    kind, entry_type, raft_group, index, term, commit, proposal, payload = record
    if proposal is None:
        rest = pack_unidentified(kind, entry_type, 0, raft_group, index, term, commit)
    else:
        node, start, number = proposal
        rest = pack_identified(kind, entry_type, 0, raft_group, index, term, commit, node, start, number)
    return pack_start(len(payload), crc32c(payload, crc32c(rest))) + rest


def command_group(head: Buffer) -> int | None:
    """Raft group of a command, by the encoded head of its record; None of another record."""
    if head[_KIND_AT] != RecordKind.ENTRY or head[_KIND_AT + 1] != EntryType.COMMAND:
        return None
    return int.from_bytes(head[_GROUP_AT : _GROUP_AT + 8], "little")


class FlushScan:
    """Scan of a whole file's flushes from byte `at` on, to the first invalid or unexpected one.

    Iteration yields position and records of each flush, once. The attributes are final when it has
    ended.

    Attributes:
        end: byte behind the last valid flush.
        next_flush: the flush number expected there.
        damage: the reason that no flush begins at `end`, empty if only zeros follow.
        later_flush: position of a valid flush from `end` on other than the expected one, or None.
            No crash leaves such bytes.
        last_flush: position of the last valid flush, None if there is none.
    """

    def __init__(
        self, buffer: Buffer, header: FileHeader, next_flush: int, at: int = FILE_HEADER_BYTES
    ) -> None:
        self._view = memoryview(buffer)
        self._header = header
        self.end = at
        self.next_flush = next_flush
        self.damage = ""
        self.later_flush: int | None = None
        self.last_flush: int | None = None

    def __iter__(self) -> Iterator[tuple[int, list[RecordPlace]]]:
        """Yield position and records of each flush.

        Raises:
            CorruptData: as `read_flush`.
        """
        while not isinstance(flush := read_flush(self._view, self.end, self._header, self.next_flush), str):
            yield self.end, flush.records
            self.last_flush, self.end = self.end, flush.end
            self.next_flush += 1
        self.damage = flush
        if flush:
            self.later_flush = find_later_flush(self._view, self.end, self._header, self.next_flush)


def read_flush(view: memoryview, at: int, header: FileHeader, flush_number: int) -> Flush | str:
    """Read the flush at byte `at` of a whole file.

    Returns:
        The flush; the reason if it is damaged or another one; "" if only zeros follow.

    Raises:
        CorruptData: all checksums are valid, but no release can have written the content: a record
            of an unknown kind, or a wrong number of records.
    """
    found = _flush_at(view, at, header, flush_number)
    if isinstance(found, str):
        return found
    end, count = found
    records = read_records(view, at + FLUSH_FRAME_BYTES, end, header.version)
    if isinstance(records, str):
        return records
    if len(records) != count:
        raise CorruptData(
            f"flush {flush_number} at byte {at} has {len(records)} records, its frame says {count}"
        )
    return Flush(records, end)


def _flush_at(view: memoryview, at: int, header: FileHeader, flush_number: int) -> tuple[int, int] | str:
    """End and number of records of the flush at `at`.

    The reason if it is damaged or another one; "" if only zeros follow.
    """
    if at + FLUSH_FRAME_BYTES > len(view) or bytes(view[at : at + 4]) == b"\0\0\0\0":
        return "" if is_zero(view[at:]) else "neither a flush nor zeros"
    frame = read_flush_frame(view, at, header.cluster_id)
    if frame is None:
        return "no valid flush frame"
    number, in_file, position, size, count = frame
    if (number, in_file, position) != (flush_number, header.file_number, at):
        return (
            f"flush {number} of file {in_file} at byte {position}, "
            f"expected flush {flush_number} of file {header.file_number} at byte {at}"
        )
    end = at + FLUSH_FRAME_BYTES + size
    if end > len(view):
        return f"flush {number} has {size} bytes, the file ends before"
    return end, count


def read_flush_frame(view: memoryview, at: int, cluster_id: Buffer) -> tuple[int, int, int, int, int] | None:
    """Fields of the frame at `at` of a buffer, from the flush number on; None if it is invalid."""
    magic, crc = _FLUSH_START.unpack_from(view, at)
    if magic != _FLUSH_MAGIC:
        return None
    if crc32c(view[at + 8 : at + FLUSH_FRAME_BYTES], crc32c(cluster_id)) != crc:
        return None
    return _FLUSH_REST.unpack_from(view, at + 8)


def read_records(view: memoryview, at: int, end: int, version: int) -> list[RecordPlace] | str:
    """Read the records from byte `at` to `end` of a buffer, verifying each.

    Returns:
        The records; the reason if one of them is damaged.

    Raises:
        CorruptData: a record is whole, but of a kind unknown to this release, or to the version.
    """
    places: list[RecordPlace] = []
    head, kinds, entry_types = _LAYOUTS[version]
    unpack, size_of_head = head.unpack_from, head.size
    while at < end:
        if at + size_of_head > end:
            return "a record's head is cut off"
        if version == 1:
            size, crc, kind, entry_type, _, raft_group, index, term = unpack(view, at)
            commit = 0
        else:
            size, crc, kind, entry_type, _, raft_group, index, term, commit = unpack(view, at)
        behind = at + size_of_head + size
        if behind > end or crc32c(view[at + 8 : behind]) != crc:
            return "a record's checksum is wrong"
        if kind not in kinds or entry_type not in entry_types:
            raise CorruptData(_unknown(kind, entry_type, version))
        places.append((at, behind, kind, entry_type, raft_group, index, term, commit))
        at = behind
    return places


def _unknown(kind: int, entry_type: int, version: int) -> str:
    found = f"a valid record has kind {kind} and entry type {entry_type}, which"
    if version < FORMAT_VERSION:
        return f"{found} format version {version} does not have"
    return f"{found} this release does not know: a newer one wrote it"


def journal_record(view: memoryview, place: RecordPlace, version: int) -> JournalRecord:
    """The record at a place of a buffer; its payload is a view into the buffer."""
    at, end, kind, entry_type, raft_group, index, term, commit = place
    payload = view[at + head_bytes(version) : end]
    proposal = None
    if version > 1 and kind in ENTRY_KINDS:
        proposal = ProposalId(*_PROPOSAL.unpack_from(view, at + _PROPOSAL_AT))
    return JournalRecord(
        RecordKind(kind),
        EntryType(entry_type),
        raft_group,
        index,
        term,
        payload,
        version,
        commit,
        proposal if proposal and any(proposal) else None,
    )


def find_later_flush(view: memoryview, after: int, header: FileHeader, flush_number: int) -> int | None:
    """Position of a valid frame of this file from `after` on, of another flush than `flush_number`.

    No crash leaves one. Either it is later, and was written once the bytes before it were durable,
    or the file is older than that number.
    """
    data = bytes(view[after:])
    found = data.find(_FLUSH_MAGIC)
    while found >= 0:
        at = after + found
        if at + FLUSH_FRAME_BYTES <= len(view):
            frame = read_flush_frame(view, at, header.cluster_id)
            if frame is not None and frame[0] != flush_number and frame[1:3] == (header.file_number, at):
                return at
        found = data.find(_FLUSH_MAGIC, found + 1)
    return None


def is_zero(view: memoryview) -> bool:
    """True if a buffer has only zeros."""
    step = 1 << 16
    zeros = bytes(step)
    # Comparing bytes is a memcmp; comparing views goes item by item, seventy times slower.
    return all(bytes(view[at : at + step]) == zeros[: len(view) - at] for at in range(0, len(view), step))
