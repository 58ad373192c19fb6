"""The simulated disk: ends of a process, failing calls, and space. Power failures are tested in
`test_nodes`.
"""

import errno
from collections.abc import Callable
from random import Random

import pytest

from tests.sim.disk import Ended, SimulatedDisk
from tests.sim.disks import DIRECTORY, PATH, SEEDS, content, make, make_directory, put, put_durably
from tests.sim.nodes import PAGE_BYTES

# --- processes and faults -------------------------------------------------------------------------


def test_a_killed_process_leaves_all_data_and_its_files_are_closed() -> None:
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
def test_a_process_ends_at_the_chosen_operation(phase: str, left: bytes) -> None:
    disk = make()
    ended: list[str] = []
    disk.on_ended = lambda: ended.append(phase)
    disk.die_at, disk.die_phase = disk.operations + 1, phase
    with pytest.raises(Ended):
        disk.open(PATH).write_at([b"nnn"], 0)
    assert ended == [phase]
    disk.restart()
    assert content(disk) == left


def test_in_the_middle_of_a_write_its_first_pages_are_written() -> None:
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        disk.die_at, disk.die_phase = disk.operations + 1, "middle"
        with pytest.raises(Ended):
            disk.open(PATH).write_at([b"n" * PAGE_BYTES * 3], 0)
        disk.restart()
        assert content(disk) in b"n" * PAGE_BYTES * 3
        found.add(len(content(disk)) // PAGE_BYTES)
    assert found == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("remove_directory", lambda disk: disk.remove_directory(DIRECTORY / "d")),
        ("rename", lambda disk: disk.rename(DIRECTORY / "d", DIRECTORY / "e")),
    ],
)
def test_a_directory_whose_removal_or_rename_fails_is_unchanged(
    what: str, act: Callable[[SimulatedDisk], object]
) -> None:
    disk = make()
    disk.make_directory(DIRECTORY / "d")
    disk.fail_at = disk.operations + 1
    with pytest.raises(OSError, match="Input/output error"):
        act(disk)
    assert disk.failed is not None
    assert disk.failed.what == what
    assert disk.names(DIRECTORY) == ["d", "file"]


def test_a_directory_never_replaces_another_one_although_the_real_disk_would_let_it() -> None:
    disk = make()
    for name in ("d", "e"):
        disk.make_directory(DIRECTORY / name)
    with pytest.raises(OSError, match="not empty"):
        disk.rename(DIRECTORY / "d", DIRECTORY / "e")


def test_one_read_fails_when_told_to() -> None:
    disk = make()
    disk.fail_read_at = disk.reads + 2
    content(disk)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        content(disk)
    content(disk)


def test_a_copy_has_the_same_files_and_is_independent() -> None:
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


# --- space ----------------------------------------------------------------------------------------

NO_ROOM = "No space left|quota exceeded"


def test_a_full_disk_accepts_overwrites_only() -> None:
    disk = make()
    file = disk.open(PATH)
    file.allocate(10)
    disk.full = True
    assert (disk.full, disk.room) == (True, 0)
    file.write_at([b"x" * 10], 0)
    for act in (
        lambda: file.write_at([b"y"], 10),
        lambda: file.allocate(11),
        lambda: disk.open(DIRECTORY / "new", create=True),
        lambda: disk.make_directory(DIRECTORY / "new"),
        lambda: disk.link(PATH, DIRECTORY / "new"),
        lambda: disk.rename(PATH, DIRECTORY / "new"),
    ):
        with pytest.raises(OSError, match=NO_ROOM):
            act()
    assert content(disk) == b"x" * 10
    assert disk.names(DIRECTORY) == ["file"]
    disk.full = False
    assert (disk.full, disk.room) == (False, None)
    file.write_at([b"y"], 10)


def test_a_full_disk_allows_replacements_truncations_and_removals() -> None:
    disk = make()
    make_directory(disk)
    disk.open(DIRECTORY / "d" / "b", create=True)
    disk.full = True
    disk.rename(DIRECTORY / "d" / "a", DIRECTORY / "d" / "b")
    disk.open(DIRECTORY / "d" / "b").truncate(0)
    disk.unlink(DIRECTORY / "d" / "b")
    disk.remove_directory(DIRECTORY / "d")
    assert disk.names(DIRECTORY) == ["file"]


def test_growth_takes_space_and_truncation_or_removal_frees_it() -> None:
    disk = make()
    disk.room = 100
    file = disk.open(PATH)
    disk.make_directory(DIRECTORY / "d")
    other = disk.open(DIRECTORY / "d" / "other", create=True)
    seen = [disk.room]
    acts: list[Callable[[], object]] = [
        lambda: file.write_at([b"x" * 10], 0),
        lambda: file.write_at([b"x" * 10], 5),
        lambda: file.write_durably([b"x"], 19),
        lambda: file.allocate(50),
        lambda: file.allocate(40),
        lambda: file.truncate(30),
        lambda: other.write_at([b"x" * 70], 0),
        other.close,
        lambda: disk.unlink(DIRECTORY / "d" / "other"),
    ]
    for act in acts:
        act()
        seen.append(disk.room)
    assert seen == [100, 90, 85, 80, 50, 50, 70, 0, 0, 70]


def test_a_file_keeps_its_space_until_it_is_unlinked_and_closed() -> None:
    disk = make()
    disk.room = 100
    put(disk, "old", "x" * 10)
    put(disk, "new", "x" * 20)
    first, second = disk.open(DIRECTORY / "new"), disk.open(DIRECTORY / "new")
    assert disk.room == 70
    disk.rename(DIRECTORY / "old", DIRECTORY / "new")
    first.close()
    assert disk.room == 70
    second.close()
    assert disk.room == 90
    disk.open(DIRECTORY / "new")
    disk.unlink(DIRECTORY / "new")
    assert disk.room == 90
    disk.end()
    assert disk.room == 100


@pytest.mark.slow
def test_a_power_failure_adjusts_the_space_to_lost_and_restored_files() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make(seed)
        put_durably(disk, "old", "x" * 10)
        disk.room = 100
        disk.unlink(DIRECTORY / "old")
        put(disk, "new", "x" * 20)
        disk.lose_power()
        seen.add((tuple(sorted(path.name for path in disk.files())), disk.room))
    assert seen == {
        (("file",), 110),
        (("file", "new"), 90),
        (("file", "new", "old"), 80),
        (("file", "old"), 100),
    }


def refusals(act: Callable[[SimulatedDisk], object], room: int) -> tuple[set[int], set[bytes]]:
    """Errors of `act` for lack of space, and possible contents of the file then; it had 10 bytes
    `o`.
    """
    errors, left = set(), set()
    for seed in SEEDS:
        disk = make(seed)
        disk.open(PATH).write_at([b"o" * 10], 0)
        disk.room = room
        with pytest.raises(OSError, match=NO_ROOM) as raised:
            act(disk)
        assert raised.value.errno is not None
        errors.add(raised.value.errno)
        left.add(content(disk))
        assert disk.room == room + 10 - len(content(disk))
        disk.room = 100
        act(disk)
    return errors, left


@pytest.mark.slow
def test_a_write_without_enough_space_leaves_any_first_part_that_fits() -> None:
    errors, left = refusals(lambda disk: disk.open(PATH).write_at([b"nnn", b"nnn"], 8), 2)
    assert errors == {errno.ENOSPC, errno.EDQUOT}
    assert left == {
        b"o" * 10,
        b"o" * 8 + b"n" + b"o",
        b"o" * 8 + b"nn",
        b"o" * 8 + b"nnn",
        b"o" * 8 + b"nnnn",
    }
    _, left = refusals(lambda disk: disk.open(PATH).write_durably([b"nnnn"], 10), 0)
    assert left == {b"o" * 10}
    _, left = refusals(lambda disk: disk.open(PATH).write_at([b"nn"], 20), 11)
    assert left == {b"o" * 10, b"o" * 10 + bytes(10) + b"n"}
    _, left = refusals(lambda disk: disk.open(PATH).write_at([b"nn"], 20), 5)
    assert left == {b"o" * 10}


@pytest.mark.slow
def test_an_allocation_without_enough_space_leaves_any_part_that_fits() -> None:
    errors, left = refusals(lambda disk: disk.open(PATH).allocate(13), 2)
    assert errors == {errno.ENOSPC, errno.EDQUOT}
    assert left == {b"o" * 10, b"o" * 10 + b"\0", b"o" * 10 + b"\0\0"}


def test_a_write_that_just_fits_is_whole() -> None:
    disk = make()
    disk.room = 6
    disk.open(PATH).write_at([b"nnn", b"nnn"], 0)
    disk.open(PATH).allocate(6)
    assert (content(disk), disk.room) == (b"nnnnnn", 0)


@pytest.mark.slow
def test_a_write_during_which_the_process_ends_stays_within_the_space() -> None:
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        disk.room = PAGE_BYTES + 1
        disk.die_at, disk.die_phase = disk.operations + 1, "middle"
        with pytest.raises(Ended):
            disk.open(PATH).write_at([b"n" * PAGE_BYTES * 3], 0)
        found.add(disk.files()[PATH])
    assert found == {0, PAGE_BYTES, PAGE_BYTES + 1}


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_link_is_kept_or_lost_and_shares_its_content() -> None:
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        put_durably(disk, "a", "1")
        disk.make_directory(DIRECTORY / "d")
        disk.link(DIRECTORY / "a", DIRECTORY / "d" / "b")
        disk.unlink(DIRECTORY / "a")
        disk.lose_power()
        disk.restart()
        there = {path.relative_to(DIRECTORY).as_posix() for path in disk.files()} & {"a", "d/b"}
        found.add(frozenset(there))
        if len(there) == 2:
            file = disk.open(DIRECTORY / "a")
            file.write_at([b"2"], 0)
            assert content(disk, DIRECTORY / "d" / "b") == b"2"
            assert disk.aliases(disk.inode(DIRECTORY / "a")) == [DIRECTORY / "a", DIRECTORY / "d" / "b"]
            copy = disk.copy()
            copy.flip(DIRECTORY / "a", 0, 0)
            assert content(copy, DIRECTORY / "d" / "b") == b"3"
            assert content(disk, DIRECTORY / "a") == b"2"
    assert found == {frozenset(each) for each in ((), ("a",), ("d/b",), ("a", "d/b"))}


@pytest.mark.slow
def test_a_synced_link_survives_the_first_name() -> None:
    for seed in SEEDS:
        disk = make(seed)
        put_durably(disk, "a", "1")
        disk.make_directory(DIRECTORY / "d")
        disk.link(DIRECTORY / "a", DIRECTORY / "d" / "b")
        disk.sync_directory(DIRECTORY / "d")
        disk.unlink(DIRECTORY / "a")
        disk.lose_power()
        disk.restart()
        assert content(disk, DIRECTORY / "d" / "b") == b"1"
