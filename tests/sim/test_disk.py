"""The simulated disk: what a process sees, what a loss of power leaves, and where it fails."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.sim.disk import PAGE_BYTES, SECTOR_BYTES, Ended, SimulatedDisk

DIRECTORY = Path("/data")
PATH = DIRECTORY / "file"
OLD, NEW = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES
SEEDS = range(200)


def make(seed: int = 1) -> SimulatedDisk:
    """A disk with an empty, durable file."""
    disk = SimulatedDisk(Random(seed))
    disk.make_directory(DIRECTORY)
    disk.open(PATH, create=True).sync()
    disk.sync_directory(DIRECTORY)
    return disk


def content(disk: SimulatedDisk, path: Path = PATH) -> bytes:
    file = disk.open(path)
    return file.read_at(file.size(), 0)


def outcomes(act: Callable[[SimulatedDisk], object], path: Path = PATH) -> set[bytes | None]:
    """What a file may hold after a loss of power behind `act`, None if it is gone."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        disk = make(seed)
        act(disk)
        disk.lose_power()
        disk.restart()
        found.add(content(disk, path) if path.name in disk.names(path.parent) else None)
    return found


# --- files --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_and_holes_are_zeros() -> None:
    disk = make()
    file = disk.open(PATH)
    file.write_at([b"ab", bytearray(b"c")], PAGE_BYTES - 1)
    assert content(disk) == bytes(PAGE_BYTES - 1) + b"abc"
    assert file.read_at(5, PAGE_BYTES) == b"bc"
    file.truncate(PAGE_BYTES + 1)
    file.allocate(PAGE_BYTES + 3)
    file.allocate(2)
    assert content(disk)[-4:] == b"ab\0\0"


def test_what_was_synced_survives() -> None:
    def act(disk: SimulatedDisk) -> None:
        disk.open(PATH).write_at([OLD, NEW], 0)
        disk.open(PATH).sync()

    assert outcomes(act) == {OLD + NEW}


def test_each_unsynced_page_is_old_or_new_or_torn_at_a_sector() -> None:
    def act(disk: SimulatedDisk) -> None:
        disk.open(PATH).write_at([OLD, OLD], 0)
        disk.open(PATH).sync()
        disk.open(PATH).write_at([NEW, NEW], 0)

    found = outcomes(act)
    whole = {OLD + OLD, OLD + NEW, NEW + OLD, NEW + NEW}
    assert whole < found
    for data in found - whole:
        assert data is not None
        sectors = [data[at : at + SECTOR_BYTES] for at in range(0, len(data), SECTOR_BYTES)]
        assert set(sectors) == {OLD[:SECTOR_BYTES], NEW[:SECTOR_BYTES]}


def test_a_page_that_was_written_twice_may_be_as_it_was_in_between() -> None:
    def act(disk: SimulatedDisk) -> None:
        for value in (b"1", b"2", b"3"):
            disk.open(PATH).write_at([value], 0)
            if value == b"1":
                disk.open(PATH).sync()

    assert outcomes(act) == {b"1", b"2", b"3"}


def test_an_unsynced_length_is_any_since_the_last_sync() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.allocate(10)
        file.sync()
        file.allocate(20)
        file.truncate(5)

    assert {len(data or b"") for data in outcomes(act)} == {10, 20, 5}


def test_a_cut_takes_its_bytes_away_only_with_the_length() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.write_at([b"ab"], 0)
        file.sync()
        file.truncate(1)
        file.allocate(3)

    assert outcomes(act) == {b"ab", b"a", b"a\0\0"}


def test_a_durable_write_makes_what_it_wrote_durable_and_nothing_else() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.allocate(4 * PAGE_BYTES)
        file.write_at([NEW], 0)
        file.write_durably([NEW], PAGE_BYTES)

    found = outcomes(act)
    assert all(data and data[PAGE_BYTES : 2 * PAGE_BYTES] == NEW for data in found)
    assert {(data or b"")[:PAGE_BYTES] for data in found} > {bytes(PAGE_BYTES), NEW}


def test_what_a_failed_sync_has_dropped_no_later_one_writes() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.write_at([b"x"], 0)
        disk.fail_at = disk.operations + 1
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()
        assert content(disk) == b"x"

    assert outcomes(act) == {b"x", b"\0"}

    def write_again(disk: SimulatedDisk) -> None:
        act(disk)
        disk.open(PATH).write_at([b"x"], 0)
        disk.open(PATH).sync()

    assert outcomes(write_again) == {b"x"}


# --- names --------------------------------------------------------------------------------------------------------


def test_names_are_durable_with_their_directory() -> None:
    def create(disk: SimulatedDisk) -> None:
        disk.open(DIRECTORY / "new", create=True).sync()

    def create_durably(disk: SimulatedDisk) -> None:
        create(disk)
        disk.sync_directory(DIRECTORY)

    assert outcomes(create, DIRECTORY / "new") == {None, b""}
    assert outcomes(create_durably, DIRECTORY / "new") == {b""}
    assert outcomes(lambda disk: disk.unlink(PATH)) == {None, b""}


def test_a_rename_has_happened_or_not_and_loses_nothing() -> None:
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        for name, value in (("old", b"1"), ("new", b"2")):
            disk.open(DIRECTORY / name, create=True).write_durably([value], 0)
        disk.sync_directory(DIRECTORY)
        disk.rename(DIRECTORY / "old", DIRECTORY / "new")
        assert content(disk, DIRECTORY / "new") == b"1"
        disk.lose_power()
        disk.restart()
        found.add(tuple(content(disk, DIRECTORY / name) for name in disk.names(DIRECTORY)))
    assert found == {(b"", b"1"), (b"", b"2", b"1")}


def test_names_are_kept_independently_of_each_other() -> None:
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        for name in ("a", "b"):
            disk.open(DIRECTORY / name, create=True)
        disk.lose_power()
        disk.restart()
        found.add(tuple(disk.names(DIRECTORY)))
    assert found == {("file",), ("a", "file"), ("b", "file"), ("a", "b", "file")}


def test_a_new_directory_is_durable_with_its_parents() -> None:
    for seed in SEEDS:
        disk = SimulatedDisk(Random(seed))
        disk.make_directory(DIRECTORY / "a" / "b")
        disk.lose_power()
        disk.restart()
        assert disk.names(DIRECTORY / "a") == ["b"]


def test_a_forgotten_directory_takes_everything_with_it() -> None:
    disk = SimulatedDisk(Random(1))
    disk.ignored = frozenset({"test make_directory"})
    left = set()
    for _ in range(50):
        disk.make_directory(DIRECTORY)
        disk.open(PATH, create=True).sync()
        disk.sync_directory(DIRECTORY)
        disk.lose_power()
        disk.restart()
        left.add((*disk.names(Path("/")), *disk.names(DIRECTORY)))
        if disk.names(Path("/")):
            break
    assert left <= {(), ("data", "file")}
    assert () in left


def test_names_that_are_not_there() -> None:
    disk = make()
    assert disk.names(DIRECTORY / "nothing") == []
    with pytest.raises(FileNotFoundError):
        disk.open(DIRECTORY / "nothing")
    with pytest.raises(FileNotFoundError):
        disk.open(DIRECTORY / "nothing" / "file", create=True)
    with pytest.raises(FileNotFoundError):
        disk.unlink(DIRECTORY / "nothing")
    with pytest.raises(FileNotFoundError):
        disk.rename(DIRECTORY / "nothing", PATH)


# --- processes and faults -----------------------------------------------------------------------------------------


def test_a_killed_process_leaves_everything_and_its_files_are_dead() -> None:
    disk = make()
    lock = disk.lock(DIRECTORY / "lock")
    assert lock is not None
    assert disk.lock(DIRECTORY / "lock") is None
    file = disk.open(PATH)
    file.write_at([b"x"], 0)
    disk.end()
    with pytest.raises(Ended):
        file.write_at([b"y"], 0)
    with pytest.raises(Ended):
        disk.open(PATH)
    disk.restart()
    assert content(disk) == b"x"
    with pytest.raises(Ended):
        file.sync()
    assert disk.lock(DIRECTORY / "lock") is not None
    lock.close()
    assert disk.lock(DIRECTORY / "lock") is None


@pytest.mark.parametrize(("phase", "left"), [("before", b""), ("after", b"nnn")])
def test_a_process_ends_at_the_operation_that_was_chosen(phase: str, left: bytes) -> None:
    disk = make()
    ended: list[str] = []
    disk.on_ended = lambda: ended.append(phase)
    disk.die_at, disk.die_phase = disk.operations + 1, phase
    with pytest.raises(Ended):
        disk.open(PATH).write_at([b"nnn"], 0)
    assert ended == [phase]
    disk.restart()
    assert content(disk) == left


def test_in_the_middle_of_a_write_its_first_pages_are_there() -> None:
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        disk.die_at, disk.die_phase = disk.operations + 1, "middle"
        with pytest.raises(Ended):
            disk.open(PATH).write_at([NEW * 3], 0)
        disk.restart()
        assert content(disk) in NEW * 3
        found.add(len(content(disk)) // PAGE_BYTES)
    assert found == {0, 1, 2, 3}


def test_a_full_disk_takes_nothing_new_and_lets_be_overwritten() -> None:
    disk = make()
    file = disk.open(PATH)
    file.allocate(10)
    disk.full = True
    file.write_at([b"x" * 10], 0)
    for act in (
        lambda: file.write_at([b"y"], 10),
        lambda: file.allocate(11),
        lambda: disk.open(DIRECTORY / "new", create=True),
        lambda: disk.make_directory(DIRECTORY / "new"),
    ):
        with pytest.raises(OSError, match="No space left") as caught:
            act()
        assert caught.value.errno == errno.ENOSPC
    assert content(disk) == b"x" * 10


def test_one_read_fails_when_told_to() -> None:
    disk = make()
    disk.fail_read_at = disk.reads + 2
    content(disk)
    with pytest.raises(OSError, match="Input/output error"):
        content(disk)
    content(disk)


def test_a_copy_has_the_same_files_and_a_life_of_its_own() -> None:
    disk = make()
    disk.open(PATH).write_at([b"x"], 0)
    copy = disk.copy()
    copy.flip(PATH, 0, 0)
    assert (content(disk), content(copy)) == (b"x", b"y")
    copy.lose_power()
    copy.restart()
    assert content(copy) == b"y"
    assert copy.files() == disk.files() == {PATH: 1}


def test_one_seed_gives_one_outcome() -> None:
    def run(seed: int) -> bytes:
        disk = make(seed)
        for at in range(20):
            disk.open(PATH).write_at([Random(at).randbytes(3000)], at * 1500)
        disk.lose_power()
        disk.restart()
        return content(disk)

    assert run(3) == run(3)
    assert run(3) != run(4)
