"""Files and names on the simulated disk after a power failure."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.sim.disk import SimulatedDisk
from tests.sim.disks import DIRECTORY, PATH, SEEDS, content, make, make_directory, put, put_durably
from tests.sim.nodes import PAGE_BYTES, SECTOR_BYTES

pytestmark = pytest.mark.slow

OLD, NEW = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES


def outcomes(act: Callable[[SimulatedDisk], object], path: Path = PATH) -> set[bytes | None]:
    """Possible contents of a file after `act` and a power failure; None if it is gone."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        disk = make(seed)
        act(disk)
        disk.lose_power()
        disk.restart()
        found.add(content(disk, path) if path.name in disk.names(path.parent) else None)
    return found


def names_left(act: Callable[[SimulatedDisk], object]) -> set[str]:
    """Possible listings of the directory after `act` and a power failure."""
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        disk.unlink(PATH)
        disk.sync_directory(DIRECTORY)
        act(disk)
        disk.lose_power()
        disk.restart()
        found.add(" ".join(listing(disk, DIRECTORY)))
    return found


def listing(disk: SimulatedDisk, directory: Path) -> list[str]:
    """All names below a directory: `directory/`, and `file=content`."""
    found = []
    for name in disk.names(directory):
        try:
            found.append(f"{name}={content(disk, directory / name).decode()}")
        except IsADirectoryError:
            found += [f"{name}/", *(f"{name}/{below}" for below in listing(disk, directory / name))]
    return found


# --- files ----------------------------------------------------------------------------------------


def test_written_data_is_read_and_holes_are_zeros() -> None:
    disk = make()
    file = disk.open(PATH)
    file.write_at([b"ab", bytearray(b"c")], PAGE_BYTES - 1)
    assert content(disk) == bytes(PAGE_BYTES - 1) + b"abc"
    assert file.read_at(5, PAGE_BYTES) == b"bc"
    file.truncate(PAGE_BYTES + 1)
    file.allocate(PAGE_BYTES + 3)
    file.allocate(2)
    assert content(disk)[-4:] == b"ab\0\0"


def test_synced_data_survives() -> None:
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


def test_a_page_written_twice_may_have_the_content_in_between() -> None:
    def act(disk: SimulatedDisk) -> None:
        for value in (b"1", b"2", b"3"):
            disk.open(PATH).write_at([value], 0)
            if value == b"1":
                disk.open(PATH).sync()

    assert outcomes(act) == {b"1", b"2", b"3"}


def test_an_unsynced_length_is_any_length_since_the_last_sync() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.allocate(10)
        file.sync()
        file.allocate(20)
        file.truncate(5)

    assert {len(data or b"") for data in outcomes(act)} == {10, 20, 5}


def test_a_truncation_removes_its_bytes_only_together_with_the_length() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.write_at([b"ab"], 0)
        file.sync()
        file.truncate(1)
        file.allocate(3)

    assert outcomes(act) == {b"ab", b"a", b"a\0\0"}


def test_a_durable_write_makes_only_its_own_bytes_durable() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.allocate(4 * PAGE_BYTES)
        file.write_at([NEW], 0)
        file.write_durably([NEW], PAGE_BYTES)

    found = outcomes(act)
    assert all(data and data[PAGE_BYTES : 2 * PAGE_BYTES] == NEW for data in found)
    assert {(data or b"")[:PAGE_BYTES] for data in found} > {bytes(PAGE_BYTES), NEW}


def test_an_empty_durable_write_makes_nothing_durable() -> None:
    def act(disk: SimulatedDisk) -> None:
        file = disk.open(PATH)
        file.allocate(10)
        file.write_durably([b""], 5)

    assert outcomes(act) == {b"", bytes(10)}


def test_pages_dropped_by_a_failed_sync_are_not_written_by_later_ones() -> None:
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


# --- names ----------------------------------------------------------------------------------------


def test_names_are_durable_with_their_directory() -> None:
    def create(disk: SimulatedDisk) -> None:
        disk.open(DIRECTORY / "new", create=True).sync()

    def create_durably(disk: SimulatedDisk) -> None:
        create(disk)
        disk.sync_directory(DIRECTORY)

    assert outcomes(create, DIRECTORY / "new") == {None, b""}
    assert outcomes(create_durably, DIRECTORY / "new") == {b""}
    assert outcomes(lambda disk: disk.unlink(PATH)) == {None, b""}


def test_a_rename_is_applied_or_not_and_loses_nothing() -> None:
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


def test_a_lost_directory_takes_its_content_with_it() -> None:
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


def test_a_renamed_file_is_not_lost_to_its_replacement() -> None:
    def act(disk: SimulatedDisk) -> None:
        put_durably(disk, "a", "1")
        disk.rename(DIRECTORY / "a", DIRECTORY / "b")
        put(disk, "a", "2")

    assert names_left(act) == {"a=1", "b=1", "a=2 b=1"}


def test_a_file_renamed_twice_has_one_of_its_three_names() -> None:
    def act(disk: SimulatedDisk) -> None:
        put_durably(disk, "a", "1")
        disk.rename(DIRECTORY / "a", DIRECTORY / "b")
        disk.rename(DIRECTORY / "b", DIRECTORY / "c")

    assert names_left(act) == {"a=1", "b=1", "c=1"}


def test_a_file_renamed_and_unlinked_has_one_of_its_names_or_none() -> None:
    def act(disk: SimulatedDisk) -> None:
        put_durably(disk, "a", "1")
        disk.rename(DIRECTORY / "a", DIRECTORY / "b")
        disk.unlink(DIRECTORY / "b")

    assert names_left(act) == {"a=1", "b=1", ""}


def test_a_removed_directory_may_be_back_with_any_of_its_removed_names() -> None:
    def act(disk: SimulatedDisk) -> None:
        make_directory(disk)
        for name in disk.names(DIRECTORY / "d"):
            disk.unlink(DIRECTORY / "d" / name)
        disk.remove_directory(DIRECTORY / "d")

    assert names_left(act) == {"", "d/", "d/ d/a=1", "d/ d/b=2", "d/ d/a=1 d/b=2"}


def test_a_removed_directory_is_back_empty_if_its_names_were_synced_and_its_own_was_not() -> None:
    def act(disk: SimulatedDisk) -> None:
        make_directory(disk)
        for name in disk.names(DIRECTORY / "d"):
            disk.unlink(DIRECTORY / "d" / name)
        disk.sync_directory(DIRECTORY / "d")
        disk.remove_directory(DIRECTORY / "d")

    assert names_left(act) == {"", "d/"}


def test_a_removed_directory_is_gone_with_its_content_when_its_parent_is_synced() -> None:
    def act(disk: SimulatedDisk) -> None:
        make_directory(disk)
        for name in disk.names(DIRECTORY / "d"):
            disk.unlink(DIRECTORY / "d" / name)
        disk.remove_directory(DIRECTORY / "d")
        disk.sync_directory(DIRECTORY)

    assert names_left(act) == {""}


def test_a_renamed_directory_has_either_name_until_its_parent_is_synced() -> None:
    def act(disk: SimulatedDisk) -> None:
        make_directory(disk)
        disk.rename(DIRECTORY / "d", DIRECTORY / "e")
        disk.sync_directory(DIRECTORY / "e")  # its names, not its name

    def act_durably(disk: SimulatedDisk) -> None:
        act(disk)
        disk.sync_directory(DIRECTORY)

    assert names_left(act) == {"d/ d/a=1 d/b=2", "e/ e/a=1 e/b=2"}
    assert names_left(act_durably) == {"e/ e/a=1 e/b=2"}


def test_an_unlink_is_kept_or_lost_independently_of_the_rename_of_its_directory() -> None:
    def act(disk: SimulatedDisk) -> None:
        make_directory(disk)
        disk.rename(DIRECTORY / "d", DIRECTORY / "e")
        disk.unlink(DIRECTORY / "e" / "a")

    def synced(disk: SimulatedDisk) -> None:
        act(disk)
        disk.sync_directory(DIRECTORY / "e")

    assert names_left(act) == {"d/ d/a=1 d/b=2", "e/ e/a=1 e/b=2", "d/ d/b=2", "e/ e/b=2"}
    assert names_left(synced) == {"d/ d/b=2", "e/ e/b=2"}
