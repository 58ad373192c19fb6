"""Entries of raft groups by index, read from journal files: for lagging followers and relocation.

Nothing is kept between reads. A span (`journal_files`) leads to the first flush of a file that has
an entry of the raft group; from there the flushes are read to the end of the file's durable part,
or until all wanted entries are found. They are read in pieces of 1 MiB, or of one record if that is
larger: neither a file nor a flush is ever in memory as a whole. Each frame and each record on the
way is verified, those of other raft groups too, because only they lead to the next one.

The journal also has originals that were replaced, entries that a reset voided, and copies. In Raft
index and term identify an entry, and the caller knows the terms of the log: an entry counts if its
term is the log's at its index. Original or copy makes no difference; the first one found is taken.

The road not taken: a position for each entry costs a hundred bytes for each, however few are ever
read. The price is that a read passes over the flushes between the span's position and its first
entry. So a result says where the next read may begin, and a sequence of reads costs one pass.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.storage.disk import Disk, File
from pixy.storage.journal.journal_files import FilePart, journal_path
from pixy.storage.journal.journal_format import (
    ENTRY_KINDS,
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    FileHeader,
    JournalRecord,
    RecordPlace,
    head_bytes,
    journal_record,
    read_flush_frame,
    read_records,
)
from pixy.storage.journal.journal_scan import RefusedStart, judge_header
from pixy.storage.journal.term_runs import TermRun

_PIECE_BYTES = 1 << 20
_LENGTH_BYTES = 4
_NO_LIMIT = 1 << 62


class EntryRange(NamedTuple):
    """Entries [lo, hi) of a raft group's log.

    `terms` are the runs of the log's terms; entries below the first run are not wanted.
    """

    raft_group: int
    lo: int
    hi: int
    terms: Sequence[TermRun]


class EntriesRead(NamedTuple):
    """Result of a read.

    Attributes:
        entries: consecutive entries from the first wanted one on; payloads are copies. Empty if
            that one is not in the files any more.
        rest: the parts from the flush of the last entry on, for a read of those behind it. If that
            finds nothing, all parts have to be read: copies are behind younger originals.
    """

    entries: list[JournalRecord]
    rest: list[FilePart]


class JournalReader:
    """Reads entries of one node's journal. Blocks; any number of threads may use it.

    Args:
        disk, directory, owner: as of the journal.
        piece_bytes: size of a read, unless a record is larger.
    """

    def __init__(
        self, disk: Disk, directory: Path, owner: tuple[bytes, int], piece_bytes: int = _PIECE_BYTES
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner
        self._piece_bytes = piece_bytes

    def entries(self, parts: Sequence[FilePart], wanted: EntryRange, max_bytes: int) -> EntriesRead:
        """Read entries of a raft group, up to `max_bytes` of payload, but at least one.

        Args:
            parts: where they may be, see `parts_with`. A file that was removed meanwhile counts as
                one without the entries.

        Raises:
            CorruptData: a file is damaged; names file, byte and reason.
            DataDirectoryError: a file belongs to another node.
            OSError: a file cannot be read.
        """
        found = _Found(wanted, max_bytes)
        for number, part in enumerate(parts):
            if found.is_complete:
                break
            try:
                self._read(part, {wanted.raft_group: found}, number)
            except FileNotFoundError:
                continue
        return found.result(parts)

    def entries_of_file(self, part: FilePart, wanted: Sequence[EntryRange]) -> list[JournalRecord]:
        """Read the entries of several raft groups that one file has, for relocation.

        Returns:
            Entries ordered by raft group and index, with holes where the file does not have them.
            Payloads are copies, together at most as large as the part.

        Raises:
            CorruptData, DataDirectoryError, OSError: as `entries`, also if the file is missing.
        """
        found = {each.raft_group: _Found(each, _NO_LIMIT) for each in wanted}
        self._read(part, found, 0)
        return [record for _, each in sorted(found.items()) for record in each.records()]

    def _read(self, part: FilePart, wanted: "dict[int, _Found]", number: int) -> None:
        """Find the wanted entries of a part; `number` is its place in the list of parts."""
        path = journal_path(self._directory, part.number)
        file = self._disk.open(path, background=True)
        try:
            header = judge_header(path, file.read_at(FILE_HEADER_BYTES, 0), part.number, self._owner)
            if isinstance(header, RefusedStart):
                raise header.error
            if isinstance(header, str):
                raise CorruptData(f"{path}: {header}")
            for flush, view, places in _Flushes(file, path, header, part, self._piece_bytes):
                if _take(wanted, view, places, header.version, (number, flush)):
                    return
        finally:
            file.close()


def _take(
    wanted: "dict[int, _Found]",
    view: memoryview,
    places: list[RecordPlace],
    version: int,
    where: tuple[int, int],
) -> bool:
    """Add the wanted entries among some records; True if nothing else is wanted."""
    taken = False
    for place in places:
        found = wanted.get(place[4])
        if found is not None and place[2] in ENTRY_KINDS and found.is_wanted(place[5], place[6]):
            record = journal_record(view, place, version)
            record.payload = bytes(record.payload)
            found.add(record, where)
            taken = True
    return taken and all(each.is_complete for each in wanted.values())


class _Found:
    """Entries of a range, as they are found.

    Entries are not found in their order: copies are behind younger originals. What is kept is
    bounded nevertheless: entries above the limit of bytes are dropped, and the range ends there.
    """

    def __init__(self, wanted: EntryRange, max_bytes: int) -> None:
        self._lo = wanted.lo
        # Behind the last entry that fits into the limit.
        self._hi = wanted.hi
        self._firsts = [first for first, _ in wanted.terms]
        self._terms = [term for _, term in wanted.terms]
        self._max_bytes = max_bytes
        # By index: the entry, and number of the part and position of the flush that has it.
        # Invariant: all are in [_lo, _hi); `_indexes` has their indexes, ascending; `_bytes` is the
        # size of their payloads, and above the limit only if there is just one.
        self._found: dict[int, tuple[JournalRecord, tuple[int, int]]] = {}
        self._indexes: list[int] = []
        self._bytes = 0

    @property
    def is_complete(self) -> bool:
        """True if nothing else is wanted."""
        return len(self._found) >= self._hi - self._lo

    def is_wanted(self, index: int, term: int) -> bool:
        """True if an entry is in the range, of the log's term, and not found yet."""
        if not self._lo <= index < self._hi or index in self._found:
            return False
        run = bisect_right(self._firsts, index) - 1
        return run >= 0 and self._terms[run] == term

    def add(self, record: JournalRecord, where: tuple[int, int]) -> None:
        """Add a wanted entry."""
        self._found[record.index] = record, where
        insort(self._indexes, record.index)
        self._bytes += len(record.payload)
        while self._bytes > self._max_bytes and len(self._indexes) > 1:
            self._hi = self._indexes.pop()
            dropped, _ = self._found.pop(self._hi)
            self._bytes -= len(dropped.payload)

    def records(self) -> list[JournalRecord]:
        """All entries that were found, in order."""
        return [self._found[index][0] for index in self._indexes]

    def result(self, parts: Sequence[FilePart]) -> EntriesRead:
        """The entries without a hole, and the parts from the last one on."""
        entries: list[JournalRecord] = []
        while (there := self._found.get(self._lo + len(entries))) is not None:
            entries.append(there[0])
        if not entries:
            return EntriesRead([], list(parts))
        number, flush = self._found[entries[-1].index][1]
        return EntriesRead(entries, [parts[number]._replace(begin=flush), *parts[number + 1 :]])


class _Flushes:
    """The flushes of a part of a file, read piece by piece.

    Iteration yields the position of a flush, a buffer with some of its records, and their places in
    it.
    """

    def __init__(self, file: File, path: Path, header: FileHeader, part: FilePart, piece_bytes: int) -> None:
        self._file = file
        self._path = path
        self._header = header
        self._head_bytes = head_bytes(header.version)
        self._part = part
        self._piece_bytes = piece_bytes
        # Piece of the file in memory, and its position.
        self._view = memoryview(b"")
        self._base = 0

    def __iter__(self) -> Iterator[tuple[int, memoryview, list[RecordPlace]]]:
        """Raises CorruptData if the part has anything but valid flushes that follow each other."""
        at, number = self._part.begin, 0
        while at < self._part.end:
            number, size, count = self._frame(at, number)
            begin, end = at + FLUSH_FRAME_BYTES, at + FLUSH_FRAME_BYTES + size
            if end > self._part.end:
                raise self._corrupt(at, f"flush {number} has {size} bytes, the flushes end before")
            while begin < end:
                behind, places = self._records(begin, end)
                yield at, self._view, places
                count -= len(places)
                begin = behind
            if count:
                raise self._corrupt(at, f"flush {number} has another number of records than its frame says")
            at = end

    def _frame(self, at: int, before: int) -> tuple[int, int, int]:
        """Number, bytes and number of records of the flush at `at`, behind flush `before` if that
        is not 0.
        """
        begin = self._load(at, FLUSH_FRAME_BYTES)
        frame = read_flush_frame(self._view, begin, self._header.cluster_id)
        if frame is None:
            raise self._corrupt(at, "no valid flush frame")
        number, in_file, position, size, count = frame
        expected = (before + 1 if before else number, self._header.file_number, at)
        if (number, in_file, position) != expected:
            found = f"flush {number} of file {in_file} at byte {position}"
            raise self._corrupt(at, f"{found}, expected flush {expected[0]} of file {expected[1]} there")
        return number, size, count

    def _records(self, at: int, end: int) -> tuple[int, list[RecordPlace]]:
        """Records of a flush from byte `at` on, as many as are in memory and at least one; and the
        byte behind them.
        """
        begin = self._load(at, min(self._head_bytes, end - at))
        length = int.from_bytes(self._view[begin : begin + _LENGTH_BYTES], "little")
        if at + self._head_bytes + length > end:
            raise self._corrupt(at, "a record is longer than its flush")
        begin = self._load(at, self._head_bytes + length)
        behind = self._behind_whole_records(begin, end - self._base)
        try:
            places = read_records(self._view, begin, behind, self._header.version)
        except CorruptData as error:
            raise self._corrupt(at, str(error)) from error
        if isinstance(places, str):
            raise self._corrupt(at, places)
        return self._base + behind, places

    def _behind_whole_records(self, begin: int, end: int) -> int:
        """Byte of the buffer behind the last record before `end` that is in memory as a whole."""
        if end <= len(self._view):
            return end
        while begin + self._head_bytes <= len(self._view):
            length = int.from_bytes(self._view[begin : begin + _LENGTH_BYTES], "little")
            if begin + self._head_bytes + length > len(self._view):
                break
            begin += self._head_bytes + length
        return begin

    def _load(self, at: int, size: int) -> int:
        """Make `size` bytes from `at` on available; returns their position in the buffer."""
        if at < self._base or at + size > self._base + len(self._view):
            if at + size > self._part.end:
                raise self._corrupt(at, "the flushes end before")
            wanted = min(max(size, self._piece_bytes), self._part.end - at)
            data = self._file.read_at(wanted, at)
            if len(data) < size:
                raise self._corrupt(at, f"the file ends at byte {at + len(data)}")
            self._base, self._view = at, memoryview(data)
        return at - self._base

    def _corrupt(self, at: int, reason: str) -> CorruptData:
        return CorruptData(f"{self._path} is corrupt at byte {at}: {reason}")
