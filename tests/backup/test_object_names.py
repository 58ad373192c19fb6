"""pixy/backup/object_names.py: names carry all that a listing has to tell."""

import pytest

from pixy.backup.object_names import RangeName, backup_id, is_backup_id, range_name, size_and_crc, state_path
from pixy.records import crc32c


def test_a_range_is_in_its_name() -> None:
    name = RangeName(7, 12, 345, 0xAB)
    assert str(name) == "00000000000000000007-00000000000000000012-345-000000ab"
    assert range_name(str(name)) == name
    assert size_and_crc(f"data/c/t/0/{name}") == (345, 0xAB)


@pytest.mark.parametrize("text", ["", "x", f"{RangeName(7, 7, 1, 1)}", f"{RangeName(7, 8, 1, 1)}.part"])
def test_other_names_are_none_of_records(text: str) -> None:
    assert range_name(text) is None


def test_names_are_in_the_order_of_offsets() -> None:
    names = [RangeName(first, first + 1, 1, 1) for first in (10, 9, 100, 2)]
    assert sorted(map(str, names)) == list(map(str, sorted(names)))


def test_ids_are_times_in_their_order() -> None:
    ids = [backup_id(time_ms) for time_ms in (0, 999, 1000, 1_800_000_000_123)]
    assert ids == sorted(ids)
    assert ids[-1] == "20270115T080000.123Z"
    assert all(map(is_backup_id, ids))
    assert not is_backup_id("../x")


def test_the_state_is_checked_by_its_path() -> None:
    path = state_path(b"\1\2", backup_id(0), [b"ab", b"c"])
    assert path.startswith("state/0102/19700101T000000.000Z-3-")
    assert size_and_crc(path) == (3, crc32c(b"abc"))
    with pytest.raises(ValueError, match="is not the path of an object"):
        size_and_crc("state/0102/x")
