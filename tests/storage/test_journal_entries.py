"""Entries of a raft group through whole histories of a journal, compared with a model that keeps
the group's log as a list.

The journal is real bytes, read by recovery, and entries are relocated from the same source as on a
node. The meaning of each record alone is tested in `test_journal_entries_decisions`.
"""

from pathlib import Path
from random import Random

import pytest

from pixy.errors import CorruptData
from pixy.storage import (
    EntryType,
    JournalRecord,
    RecordKind,
    RecoveredGroup,
    read_entries,
    recover_journal,
)
from pixy.storage.journal_entries import GroupEntries
from tests.fakes.disk import RecordingDisk
from tests.storage.journals import OWNER, applied, flush, header, record

GROUPS = (1000, 1001, 1002)


def payload(raft_group: int, index: int, term: int) -> bytes:
    """In Raft an index and a term identify one entry."""
    return b"%d %d %d" % (raft_group, index, term)


class History:
    """A journal's files, and the true log and applied index of each group.

    Attributes:
        logs: the terms of each group's entries, from index 1 on.
        applied: the applied position of each group.
    """

    def __init__(self, directory: Path, rng: Random) -> None:
        self.logs: dict[int, list[int]] = {group: [] for group in GROUPS}
        self.applied = dict.fromkeys(GROUPS, 0)
        self._terms = dict.fromkeys(GROUPS, 1)
        self._directory = directory
        self._rng = rng
        self._files = [1]
        self._flushes = 0
        self._oldest_may_go = False
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
        )
        rng.choice(steps)()

    # --- what a node does -------------------------------------------------------------------------

    def append(self) -> None:
        """Append new entries of several groups in one flush."""
        records = []
        for group in self._rng.sample(GROUPS, self._rng.randint(1, 3)):
            for _ in range(self._rng.randint(1, 4)):
                self.logs[group].append(self._terms[group])
                records.append(self._original(group, len(self.logs[group])))
        self._write(records)

    def replace(self) -> None:
        """Replace uncommitted entries of a log by a new leader's, with any terms that fit."""
        group = self._rng.choice(GROUPS)
        log = self.logs[group]
        if len(log) == self.applied[group]:
            return
        self._terms[group] += 1
        index = self._rng.randint(self.applied[group] + 1, len(log))
        before = log[index - 2] if index > 1 else 1
        terms = [term for term in range(before, self._terms[group] + 1) if term != log[index - 1]]
        log[index - 1 :] = [self._rng.choice(terms)]
        self._write([self._original(group, index)])

    def apply(self) -> None:
        group = self._rng.choice(GROUPS)
        self.applied[group] = self._rng.randint(self.applied[group], len(self.logs[group]))
        self._write([applied(group, self.applied[group])])

    def new_file(self) -> None:
        """Continue the journal in a new file, if the newest is not empty."""
        if self._path(self._files[-1]).stat().st_size == len(header()):
            return
        self._files.append(self._files[-1] + 1)
        self._path(self._files[-1]).write_bytes(header(self._files[-1]))

    def relocate(self) -> None:
        """Copy the entries of the oldest file that a group needs. May be repeated: a crash may
        precede the file's removal.
        """
        if len(self._files) < 2:
            return
        found = read_entries(RecordingDisk(), self._directory, OWNER, self._files[0], self.applied)
        self._write([self._copy(each) for each in found if self._is_in_log(each)])
        self._oldest_may_go = True

    def forget(self) -> None:
        """Remove the oldest file if none of its entries is needed; applied positions that only it
        has are written again.
        """
        if len(self._files) < 2 or not self._oldest_may_go:
            return
        self._write([applied(group, index) for group, index in self.applied.items()])
        self._path(self._files.pop(0)).unlink()
        self._oldest_may_go = False

    # --- bytes ------------------------------------------------------------------------------------

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:020d}.journal"

    def _write(self, records: list[bytes]) -> None:
        self._flushes += 1
        path = self._path(self._files[-1])
        data = path.read_bytes()
        path.write_bytes(data + flush(self._flushes, len(data), records, self._files[-1]))

    def _original(self, group: int, index: int) -> bytes:
        term = self.logs[group][index - 1]
        return record(RecordKind.ENTRY, EntryType.COMMAND, group, index, term, payload(group, index, term))

    def _copy(self, found: JournalRecord) -> bytes:
        return record(
            RecordKind.RELOCATED_ENTRY,
            found.entry_type,
            found.raft_group,
            found.index,
            found.term,
            bytes(found.payload),
        )

    def _is_in_log(self, found: JournalRecord) -> bool:
        log = self.logs[found.raft_group]
        return found.index <= len(log) and log[found.index - 1] == found.term

    # --- what must be -----------------------------------------------------------------------------

    def check(self) -> None:
        journal = recover_journal(RecordingDisk(), self._directory, OWNER)
        assert [file.number for file in journal.files] == self._files
        for group, log in self.logs.items():
            expected = [
                (index, term, payload(group, index, term))
                for index, term in enumerate(log, 1)
                if index > self.applied[group]
            ]
            entries = journal.groups.get(group, RecoveredGroup()).entries_after(self.applied[group])
            assert [(each.index, each.term, bytes(each.payload)) for each in entries] == expected
            assert all(each.raft_group == group for each in entries)


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
        for number in range(60):
            history.step()
            if number % 4 != 3:
                continue
            try:
                history.check()
            except (AssertionError, CorruptData) as error:
                raise AssertionError(f"seed {seed}, step {number}: {error}") from error


@pytest.mark.slow
def test_histories_cover_every_case(tmp_path: Path) -> None:
    """Removed files, copies before originals, omitted copies, and originals after copies."""
    seen = set()
    relocated, original = GroupEntries.relocated, GroupEntries.original

    def watch_relocated(entries: GroupEntries[tuple[int]], index: int, entry: tuple[int]) -> None:
        before = len(list(entries))
        relocated(entries, index, entry)
        seen.add("copy left out" if len(list(entries)) == before else "copy taken")

    def watch_original(entries: GroupEntries[tuple[int]], index: int, entry: tuple[int]) -> None:
        copies = len(entries._relocated)
        original(entries, index, entry)
        if len(entries._relocated) < copies:
            seen.add("original over copies")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupEntries, "relocated", watch_relocated)
        patch.setattr(GroupEntries, "original", watch_original)
        for seed in range(30):
            directory = tmp_path / f"{seed}"
            directory.mkdir()
            history = History(directory, Random(seed))
            for _ in range(60):
                history.step()
            history.check()
            if history._files[0] > 1:
                seen.add("a file went")
    assert seen == {"copy taken", "copy left out", "original over copies", "a file went"}
