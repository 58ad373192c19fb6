"""Staged copies: a crash at each operation of the disk leaves either the log as it was or all of
the copy, and what was copied is not fetched again.
"""

import errno
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from pixy.copies import StagedCopy, staged_copy
from pixy.errors import CorruptData
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage import COPY_MANIFEST, LogOptions, RealDisk, TopicLogs, copy_directory
from tests.copies.machines import LOG, TOPICS, Copied, crashes, end_of
from tests.sim.disk import SimulatedDisk
from tests.storage.logs import LONG_MS, identity


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize(("own", "keeps"), [(15, True), (15, False), (0, False)])
def test_a_crash_at_any_operation_leaves_one_of_two_whole_logs(own: int, keeps: bool, power: bool) -> None:
    crashes(lambda machine: machine.copy(machine.start()), own, keeps=keeps, power=power, seed=own)


@pytest.mark.slow
def test_a_crash_at_any_operation_without_links_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: SimulatedDisk, old: Path, new: Path) -> None:
        raise OSError(errno.EPERM, "no links here", str(new))

    monkeypatch.setattr(SimulatedDisk, "link", refuse)
    crashes(lambda machine: machine.copy(machine.start()), 15, keeps=True, power=True, seed=1)


def test_a_copy_is_installed_and_nothing_is_left() -> None:
    machine = Copied(SimulatedDisk(Random(1)))
    machine.copy(machine.start())
    machine.check()
    assert machine.applied is not None
    assert machine.applied.end_offset == end_of(len(LOG))


def test_a_copy_that_the_journal_does_not_know_replaces_nothing() -> None:
    machine = Copied(SimulatedDisk(Random(1)))
    machine.copy(machine.start(), installs=False)
    machine.check()
    assert machine.applied is not None
    assert machine.applied.end_offset == end_of(machine.own)
    machine.copy(machine.start())
    machine.check()


def staged(disk: RealDisk | SimulatedDisk, topics: Path) -> StagedCopy:
    return StagedCopy(disk, topics, identity(), TopicLogs(LogOptions(800, LONG_MS)))


def filled(topics: Path, first: int, last: int) -> StagedCopy:
    """A copy with some batches, all of them synced."""
    copy = staged(RealDisk(), topics)
    copy.open(end_of(first), end_of(first), end_of(len(LOG)))
    with patch.object(staged_copy, "SYNC_BYTES", 1):
        for number in range(first, last):
            copy.write([memoryview(LOG[number])], end_of(number + 1))
    copy.keep()
    return copy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lowest", "highest", "end", "goes_on"),
    [
        (5, 5, 40, True),
        (0, 20, 40, True),
        (0, 10, 20, True),
        (6, 6, 40, False),  # the replica has other records by now
        (0, 4, 40, False),  # it would lack some before
        (0, 21, 40, False),  # it ends before the records that anybody has
        (5, 5, 19, False),  # it has more than the position
    ],
)
def test_a_copy_goes_on_with_what_an_earlier_one_has_left_if_that_fits(
    tmp_path: Path, lowest: int, highest: int, end: int, goes_on: bool
) -> None:
    filled(tmp_path, 5, 20)
    copy = staged(RealDisk(), tmp_path)
    copy.open(end_of(lowest), end_of(highest), end_of(end))
    begin = end_of(5 if goes_on else highest)
    assert (copy.begin_offset, copy.end_offset) == (begin, end_of(20) if goes_on else begin)


def test_what_was_copied_before_a_break_is_kept(tmp_path: Path) -> None:
    copy = staged(RealDisk(), tmp_path)
    copy.open(0, 0, end_of(len(LOG)))
    copy.write([memoryview(each) for each in LOG[:20]], end_of(20))
    copy.keep()
    again = staged(RealDisk(), tmp_path)
    again.open(0, 0, end_of(len(LOG)))
    assert again.end_offset == end_of(20)
    again.remove()
    again.keep()
    assert not (tmp_path / "1000-copy").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", [COPY_MANIFEST, f"{end_of(5):020d}.log"])
def test_a_damaged_copy_is_begun_anew(tmp_path: Path, what: str) -> None:
    filled(tmp_path, 5, 20)
    path = tmp_path / "1000-copy" / what
    path.write_bytes(path.read_bytes()[:-1])
    copy = staged(RealDisk(), tmp_path)
    copy.open(end_of(5), end_of(5), end_of(40))
    assert copy.end_offset == end_of(5)
    assert not (tmp_path / "1000-copy").exists()


def test_own_segments_with_bytes_behind_the_synced_ones_are_not_kept() -> None:
    machine = Copied(SimulatedDisk(Random(1)))
    log = machine.start()
    last = max(name for name in machine.disk.names(TOPICS / "topic-0") if name.endswith(".log"))
    file = machine.disk.open(TOPICS / "topic-0" / last)
    file.write_at([b"more"], file.size())
    file.close()
    with pytest.raises(CorruptData, match="were synced"):
        machine.copy(log)
    machine.disk.open(TOPICS / "topic-0" / last).truncate(file.size() - 4)
    machine.check()


def test_a_copy_without_records_is_an_empty_log(tmp_path: Path) -> None:
    copy = staged(RealDisk(), tmp_path)
    copy.open(7, 7, 7)
    position = copy.seal(
        AppliedPosition(raft_group=1000, index=3, term=1, log_begin_offset=5, end_offset=7), None, b""
    )
    assert (position.log_begin_offset, position.segment_base_offset, position.segment_bytes) == (7, 7, 0)
    assert sorted(path.name for path in (tmp_path / "1000-copy").iterdir()) == [COPY_MANIFEST, "identity"]


def test_a_crash_loses_a_small_part_of_a_copy_however_large_it_is(tmp_path: Path) -> None:
    copy, written, lost = staged(RealDisk(), tmp_path), 0, []
    copy.open(0, 0, end_of(len(LOG)))
    with patch.object(staged_copy, "SYNC_BYTES", 1):
        for number, each in enumerate(LOG):
            copy.write([memoryview(each)], end_of(number + 1))
            written += len(each)
            manifest = staged_copy.read_manifest(RealDisk(), copy_directory(tmp_path, identity().raft_group))
            synced = 0 if manifest is None else manifest.copied.end_offset
            lost.append(sum(len(LOG[at]) for at in range(number + 1) if end_of(at + 1) > synced) / written)
    assert max(lost) <= 0.04
    assert sum(part > 0 for part in lost) >= len(lost) // 4, "each write is synced"
    copy.remove()
