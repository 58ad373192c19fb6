"""Entries of a raft group through whole histories of a journal, compared with a model that keeps
the group's log as a list.

The journal is real bytes, read by recovery and by index, and entries are relocated from the same
source as on a node. The meaning of each record alone is tested in `test_journal_entries_decisions`.
"""

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from pixy.entry_ids import LogPosition
from pixy.errors import CorruptData
from pixy.storage import (
    EntryRange,
    EntryType,
    FilePart,
    JournalFile,
    JournalReader,
    JournalRecord,
    RecordKind,
    RecoveredGroup,
    TermRun,
    parts_with,
    recover_journal,
)
from pixy.storage.journal.journal_entries import GroupEntries
from tests.fakes.disk import RecordingDisk
from tests.storage.entry_histories import take
from tests.storage.journals import OWNER, applied, carried_over, flush, header, record, reset

GROUPS = (1000, 1001, 1002)


def payload(raft_group: int, index: int, term: int) -> bytes:
    """In Raft an index and a term identify one entry."""
    return b"%d %d %d" % (raft_group, index, term) + b"." * (index % 7)


class Written(NamedTuple):
    """A record of the model; `commit` of an entry."""

    file: int
    kind: RecordKind
    raft_group: int
    position: LogPosition
    commit: int = 0


class Log:
    """The true log of a raft group.

    Attributes:
        terms: terms of all entries from index 1 on; up to `begin` the reset's.
        begin: position of the newest reset, if `was_reset`.
        applied: applied position.
        term: current term.
        reset_file: the newest file with the newest reset, 0 if there was none.
    """

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.begin = LogPosition(0, 0)
        self.applied = 0
        self.term = 1
        self.reset_file = 0

    @property
    def last(self) -> int:
        return len(self.terms)

    def position(self, index: int) -> LogPosition:
        return LogPosition(self.terms[index - 1], index)

    def has(self, position: LogPosition) -> bool:
        inside = self.begin.index < position.index <= self.last
        return inside and self.position(position.index) == position

    def runs(self, first: int = 1) -> list[TermRun]:
        """Runs of the terms from an entry on."""
        runs: list[TermRun] = []
        for index in range(max(first, self.begin.index + 1), self.last + 1):
            if not runs or runs[-1][1] != self.terms[index - 1]:
                runs.append((index, self.terms[index - 1]))
        return runs


class History:
    """A journal's files, and the true log of each group."""

    def __init__(self, directory: Path, rng: Random) -> None:
        self.logs = {group: Log() for group in GROUPS}
        self.files = [1]
        self._directory = directory
        self._rng = rng
        self._flushes = 0
        self._oldest_may_go = False
        # Records of the remaining files, in order.
        self._written: list[Written] = []
        self._path(1).write_bytes(header(1))

    def step(self) -> None:
        rng = self._rng
        steps = (
            self.append,
            self.append,
            self.replace,
            self.apply,
            self.new_file,
            self.relocate,
            self.forget,
            self.reset,
        )
        rng.choice(steps)()

    # --- what a node does -------------------------------------------------------------------------

    def append(self) -> None:
        """Append new entries of several groups in one flush."""
        records = []
        for group in self._rng.sample(GROUPS, self._rng.randint(1, 3)):
            log = self.logs[group]
            for _ in range(self._rng.randint(1, 4)):
                log.terms.append(log.term)
                records.append(self._entry(RecordKind.ENTRY, group, log.position(log.last)))
        self._write(records)

    def replace(self) -> None:
        """Replace uncommitted entries of a log by a new leader's, with any terms that fit."""
        group = self._rng.choice(GROUPS)
        log = self.logs[group]
        if log.last == log.applied:
            return
        log.term += 1
        index = self._rng.randint(log.applied + 1, log.last)
        before = log.terms[index - 2] if index > 1 else 1
        terms = [term for term in range(before, log.term + 1) if term != log.terms[index - 1]]
        log.terms[index - 1 :] = [self._rng.choice(terms)]
        self._write([self._entry(RecordKind.ENTRY, group, log.position(index))])

    def apply(self) -> None:
        group = self._rng.choice(GROUPS)
        log = self.logs[group]
        log.applied = self._rng.randint(log.applied, log.last)
        self._write([(None, applied(group, log.applied))])

    def reset(self) -> None:
        """Replace a log by a snapshot, in or behind it."""
        if self._rng.random() < 0.5:
            return
        group = self._rng.choice(GROUPS)
        log = self.logs[group]
        log.term += 1
        log.begin = LogPosition(log.term - self._rng.randint(0, 1), log.applied + self._rng.randint(1, 6))
        log.applied = log.begin.index
        log.terms = [log.begin.term] * log.applied
        log.reset_file = self.files[-1]
        written = Written(self.files[-1], RecordKind.LOG_RESET, group, log.begin)
        records = [
            (written, reset(log.begin.index, log.begin.term, group)),
            (None, applied(group, log.applied)),
        ]
        self._rng.shuffle(records)
        self._write(records)

    def new_file(self) -> None:
        """Continue the journal in a new file, if the newest is not empty."""
        if self._path(self.files[-1]).stat().st_size == len(header()):
            return
        self.files.append(self.files[-1] + 1)
        self._path(self.files[-1]).write_bytes(header(self.files[-1]))

    def relocate(self) -> None:
        """Copy the entries of the oldest file that a group needs, and carry its resets over. May be
        repeated: a crash may precede the file's removal.
        """
        if len(self.files) < 2:
            return
        wanted = [
            EntryRange(group, log.applied + 1, log.last + 1, log.runs()) for group, log in self.logs.items()
        ]
        part = FilePart(self.files[0], len(header()), self._path(self.files[0]).stat().st_size)
        found = JournalReader(RecordingDisk(), self._directory, OWNER).entries_of_file(part, wanted)
        self._write([self._copy(each) for each in found])
        self._carry_over()
        self._oldest_may_go = True

    def _carry_over(self) -> None:
        for group, log in self.logs.items():
            if log.reset_file == self.files[0]:
                log.reset_file = self.files[-1]
                written = Written(self.files[-1], RecordKind.RELOCATED_LOG_RESET, group, log.begin)
                self._write([(written, carried_over(log.begin.index, log.begin.term, group))])

    def forget(self) -> None:
        """Remove the oldest file if none of its entries is needed; applied positions that only it
        has are written again.
        """
        if len(self.files) < 2 or not self._oldest_may_go:
            return
        self._carry_over()
        self._write([(None, applied(group, log.applied)) for group, log in self.logs.items()])
        removed = self.files.pop(0)
        self._path(removed).unlink()
        self._written = [each for each in self._written if each.file != removed]
        self._oldest_may_go = False

    # --- bytes ------------------------------------------------------------------------------------

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:020d}.journal"

    def _write(self, records: list[tuple[Written | None, bytes]]) -> None:
        self._flushes += 1
        path = self._path(self.files[-1])
        data = path.read_bytes()
        path.write_bytes(
            data + flush(self._flushes, len(data), [encoded for _, encoded in records], self.files[-1])
        )
        self._written += [written for written, _ in records if written is not None]

    def _entry(self, kind: RecordKind, group: int, position: LogPosition) -> tuple[Written | None, bytes]:
        term, index = position
        content, commit = payload(group, index, term), self.logs[group].applied
        encoded = record(kind, EntryType.COMMAND, group, index, term, content, commit=commit)
        return Written(self.files[-1], kind, group, position, commit), encoded

    def _copy(self, found: JournalRecord) -> tuple[Written | None, bytes]:
        position = LogPosition(found.term, found.index)
        assert self.logs[found.raft_group].has(position)
        assert bytes(found.payload) == payload(found.raft_group, found.index, found.term)
        return self._entry(RecordKind.RELOCATED_ENTRY, found.raft_group, position)

    # --- what must be -----------------------------------------------------------------------------

    def check(self) -> None:
        journal = recover_journal(RecordingDisk(), self._directory, OWNER)
        assert [file.number for file in journal.files] == self.files
        for group, log in self.logs.items():
            found = journal.groups.get(group, RecoveredGroup(group))
            assert content_of(found.entries_after(log.applied)) == self._content(group, log.applied + 1)
            self._check_log(group, log, found)
            self._check_reads(group, log, journal.files)

    def _content(self, group: int, first: int) -> list[tuple[int, int, bytes]]:
        log = self.logs[group]
        positions = [log.position(index) for index in range(first, log.last + 1)]
        return [(index, term, payload(group, index, term)) for term, index in positions]

    def _there(self, group: int) -> set[int]:
        """Indexes of the log whose entries are in the journal."""
        return {
            each.position.index
            for each in self._written
            if each.raft_group == group
            and each.kind in (RecordKind.ENTRY, RecordKind.RELOCATED_ENTRY)
            and self.logs[group].has(each.position)
        }

    def _check_log(self, group: int, log: Log, found: RecoveredGroup) -> None:
        there = self._there(group)
        first = log.last + 1
        while first - 1 in there:
            first -= 1
        known = (found.first, found.last, list(found.terms))
        assert known == ((first, log.last, log.runs(first)) if first <= log.last else (0, 0, []))
        reset = None if found.reset is None else found.reset.position
        assert (reset, found.reset_file) == (log.begin if log.reset_file else None, log.reset_file)
        commit = 0
        for each in self._written:
            if each.raft_group == group:
                commit = 0 if each.kind is RecordKind.LOG_RESET else max(commit, each.commit)
        assert found.commit == commit

    def _check_reads(self, group: int, log: Log, files: list[JournalFile]) -> None:
        """Read some entries by index, and then those behind them where the result says."""
        if log.last <= log.begin.index:
            return
        lo = self._rng.randint(log.begin.index + 1, log.last)
        hi = self._rng.randint(lo, log.last) + 1
        max_bytes = self._rng.choice([1, 20, 40, 1000])
        reader = JournalReader(RecordingDisk(), self._directory, OWNER)
        parts = parts_with(files, group, lo, hi)
        read = reader.entries(parts, EntryRange(group, lo, hi, log.runs()), max_bytes)
        expected: list[tuple[int, int, bytes]] = []
        for each in self._content(group, lo)[: hi - lo]:
            size = sum(len(content) for _, _, content in [*expected, each])
            if each[0] not in self._there(group) or (expected and size > max_bytes):
                break
            expected.append(each)
        assert content_of(read.entries) == expected
        behind = lo + len(expected)
        rest = reader.entries(read.rest, EntryRange(group, behind, hi, log.runs()), 1000)
        assert content_of(rest.entries) == self._content(group, behind)[: len(rest.entries)]


def content_of(entries: list[JournalRecord]) -> list[tuple[int, int, bytes]]:
    return [(each.index, each.term, bytes(each.payload)) for each in entries]


# --- the log as far as the journal has it ---------------------------------------------------------


def available(history: str) -> tuple[int, int, list[TermRun]]:
    """First and last index and runs of terms, after a history in the words of the decisions."""
    found = take(history).available()
    return found.first, found.last, list(found.terms)


def test_the_log_has_applied_entries_but_no_replaced_ones() -> None:
    assert available("") == (0, 0, [])
    assert available("1 2 3/2 4/2 a4") == (1, 4, [(1, 1), (3, 2)])
    assert available("5 6 7 8/2 7/3 8/3") == (5, 8, [(5, 1), (7, 3)])
    assert available("5 6 7 3/2 4/2") == (3, 4, [(3, 2)])
    assert available("1 2 3 3/2 3 4") == (1, 4, [(1, 1)])
    assert available("1 2 3 4 a3 2/2 3/2") == (1, 3, [(1, 1), (2, 2)])


def test_the_log_has_copies_that_lead_to_its_end_without_a_hole() -> None:
    assert available("7 8/2 r5 r6") == (5, 8, [(5, 1), (8, 2)])
    assert available("7 8 r3 r4 r6 a6") == (6, 8, [(6, 1)])
    assert available("r3 r4/2 r5/2") == (3, 5, [(3, 1), (4, 2)])
    assert available("r3 r5 r6 a6") == (5, 6, [(5, 1)])
    assert available("a6 9 r7 r8 r5 r6") == (5, 9, [(5, 1)])
    assert available("r5 r6 r7 8 6/2") == (5, 6, [(5, 1), (6, 2)])
    assert available("r5 9") == (9, 9, [(9, 1)])


def test_the_log_has_nothing_that_a_reset_includes() -> None:
    assert available("1 2 3 s2") == (0, 0, [])
    assert available("1 2 3 s5/2 6/2 7/3") == (6, 7, [(6, 2), (7, 3)])
    assert available("r3 r4 r5 6 c4") == (5, 6, [(5, 1)])
    assert available("c4 r3 r4 r5 6") == (5, 6, [(5, 1)])


# --- histories ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first_seed",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in (40, 80)),
    ],
)
def test_recovery_finds_the_log_of_every_group_after_every_history(tmp_path: Path, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 40):
        directory = tmp_path / f"{seed}"
        directory.mkdir()
        history = History(directory, Random(seed))
        for number in range(80):
            history.step()
            if number % 4 != 3:
                continue
            try:
                history.check()
            except (AssertionError, CorruptData) as error:
                raise AssertionError(f"seed {seed}, step {number}: {error}") from error


@pytest.mark.slow
def test_histories_cover_every_case(tmp_path: Path) -> None:
    """Removed files, copies before originals, omitted copies, originals after copies, and resets
    over entries, carried over or not.
    """
    seen = set()
    relocated, original = GroupEntries.relocated, GroupEntries.original
    reset_to, over = GroupEntries.reset_to, GroupEntries.carried_over

    def watch_relocated(entries: GroupEntries[tuple[int]], index: int, entry: tuple[int]) -> None:
        before = len(list(entries))
        relocated(entries, index, entry)
        seen.add("copy left out" if len(list(entries)) == before else "copy taken")

    def watch_original(entries: GroupEntries[tuple[int]], index: int, entry: tuple[int]) -> None:
        copies = len(entries._relocated)
        if entries.reset is not None and not entries._was_reset and not entries._runs:
            seen.add("original behind a carried-over reset")
        original(entries, index, entry)
        if len(entries._relocated) < copies:
            seen.add("original over copies")

    def watch_reset(entries: GroupEntries[tuple[int]], position: LogPosition) -> None:
        if list(entries):
            seen.add("reset over copies" if entries._relocated else "reset over originals")
        reset_to(entries, position)

    def watch_over(entries: GroupEntries[tuple[int]], position: LogPosition) -> bool:
        seen.add("carried over beside the reset" if entries._was_reset else "carried over")
        return over(entries, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupEntries, "relocated", watch_relocated)
        patch.setattr(GroupEntries, "original", watch_original)
        patch.setattr(GroupEntries, "reset_to", watch_reset)
        patch.setattr(GroupEntries, "carried_over", watch_over)
        for seed in range(30):
            directory = tmp_path / f"{seed}"
            directory.mkdir()
            history = History(directory, Random(seed))
            for number in range(80):
                history.step()
                if number % 8 == 7:
                    history.check()
            if history.files[0] > 1:
                seen.add("a file went")
    assert seen == {
        "copy taken",
        "copy left out",
        "original over copies",
        "original behind a carried-over reset",
        "reset over originals",
        "reset over copies",
        "carried over",
        "carried over beside the reset",
        "a file went",
    }
