"""A start truncates a torn tail, a flush takes its place, and then the power fails: the truncated
bytes must not come back after the flush.

Random lives meet this too seldom: the power must fail twice, and the flush in between must end near
the end of a page.
"""

from random import Random

import pytest

from pixy.errors import CorruptData
from pixy.storage import recover_journal
from tests.sim.disk import SimulatedDisk
from tests.sim.disks import DIRECTORY
from tests.sim.nodes import PAGE_BYTES, SECTOR_BYTES
from tests.storage.journals import OWNER, content, entry, flush, journal_file

CUT = "storage/journal/recovery.py:_cut sync"
WHOLE_FILE = "storage/journal/recovery.py:_make_durable sync"
PATH = DIRECTORY / f"{1:020d}.journal"
SEEDS = range(60)


def torn_file() -> bytes:
    """A journal file whose second flush spans several pages, with one sector never written."""
    data = bytearray(journal_file([[entry(1)], [entry(2, Random(1).randbytes(15_000))]], size=20_000))
    data[3 * SECTOR_BYTES : 4 * SECTOR_BYTES] = bytes(SECTOR_BYTES)
    return bytes(data)


def is_kept(seed: int, ignored: set[str]) -> bool:
    """True if the flush written in place of the torn one exists in the end."""
    disk = SimulatedDisk(Random(seed))
    disk.make_directory(DIRECTORY)
    file = disk.open(PATH, create=True)
    file.write_durably([torn_file()], 0)
    disk.sync_directory(DIRECTORY)
    disk.ignored = frozenset(ignored)
    at = recover_journal(disk, DIRECTORY, OWNER).at
    # It ends at a page: bytes that come back in the next page would follow it directly.
    new = b"new" + bytes(PAGE_BYTES - len(flush(2, at.position, [entry(2, b"new")])) - at.position)
    disk.open(PATH).write_durably([flush(2, at.position, [entry(2, new)])], at.position)
    disk.lose_power()
    disk.restart()
    try:
        found = content(recover_journal(disk, DIRECTORY, OWNER))
    except CorruptData:
        return False
    return [payload for _, _, payload in found] == [b"payload", new]


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [set(), {CUT}, {WHOLE_FILE}])
def test_a_flush_in_place_of_a_torn_one_is_kept(ignored: set[str]) -> None:
    """The tail is truncated again until the sync of the whole file a moment later: one of the two
    is enough.
    """
    assert all(is_kept(seed, ignored) for seed in SEEDS)


def test_without_the_sync_of_a_truncation_and_its_mask_a_start_is_refused() -> None:
    assert not all(is_kept(seed, {CUT, WHOLE_FILE}) for seed in SEEDS)


def test_a_start_without_room_for_the_rest_of_the_file_truncates_the_torn_tail_all_the_same() -> None:
    disk = SimulatedDisk(Random(1))
    disk.make_directory(DIRECTORY)
    disk.open(PATH, create=True).write_durably([torn_file()], 0)
    disk.before = lambda operation: setattr(disk, "full", operation.what == "allocate")
    for _ in range(2):
        assert [payload for _, _, payload in content(recover_journal(disk, DIRECTORY, OWNER))] == [b"payload"]
