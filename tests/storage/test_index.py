"""Index files: byte format and bisection."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.storage import RealDisk
from pixy.storage.partition.index import OffsetIndex, TimeIndex

ENTRIES = [(4, 100), (9, 33000), (20, 70000)]


def test_entries_have_the_bytes_of_kafkas_index_files(tmp_path: Path) -> None:
    OffsetIndex(RealDisk(), tmp_path / "a.index").append([(1, 2)], 0)
    TimeIndex(RealDisk(), tmp_path / "a.timeindex").append([(1700000000000, 3)], 0)
    assert (tmp_path / "a.index").read_bytes() == bytes.fromhex("00000001 00000002")
    assert (tmp_path / "a.timeindex").read_bytes() == bytes.fromhex("0000018bcfe56800 00000003")


def test_a_missing_file_is_an_empty_index(tmp_path: Path) -> None:
    index = OffsetIndex(RealDisk(), tmp_path / "a.index")
    index.truncate(0)
    assert (index.count_below(99), index.floor(5), index.entries()) == (0, None, [])
    assert not index.path.exists()


def test_floor_finds_the_last_entry_at_or_below(tmp_path: Path) -> None:
    index = OffsetIndex(RealDisk(), tmp_path / "a.index")
    index.append(ENTRIES, 0)
    assert [index.floor(target) for target in (3, 4, 8, 9, 19, 20, 99)] == [
        None,
        (4, 100),
        (4, 100),
        (9, 33000),
        (9, 33000),
        (20, 70000),
        (20, 70000),
    ]


def test_half_an_entry_at_the_end_does_not_count(tmp_path: Path) -> None:
    index = OffsetIndex(RealDisk(), tmp_path / "a.index")
    index.append(ENTRIES, 0)
    index.path.write_bytes(index.path.read_bytes()[:-1])
    assert (index.count_below(1 << 40), index.floor(99), index.entries()) == (2, ENTRIES[1], ENTRIES[:2])


def test_appending_goes_behind_the_given_count_and_truncating_keeps_it(tmp_path: Path) -> None:
    index = OffsetIndex(RealDisk(), tmp_path / "a.index")
    index.append(ENTRIES, 0)
    index.append([(10, 40000)], 2)
    assert index.entries() == [*ENTRIES[:2], (10, 40000)]
    index.truncate(1)
    assert index.entries() == ENTRIES[:1]


@given(st.binary(max_size=200), st.integers(-1, 2**33))
def test_floor_never_answers_with_an_entry_above_the_target_whatever_is_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, target: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "scribbled.index"
    path.write_bytes(content)
    found = OffsetIndex(RealDisk(), path).floor(target)
    entries = list(struct.iter_unpack(">II", content[: len(content) // 8 * 8]))
    assert found is None or (found in entries and found[0] <= target)


def test_count_below_counts_leading_entries_by_their_second_field(tmp_path: Path) -> None:
    index = OffsetIndex(RealDisk(), tmp_path / "a.index")
    index.append(ENTRIES, 0)
    assert [index.count_below(limit) for limit in (0, 100, 101, 33000, 33001, 70000, 70001, 1 << 40)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert [index.entry(at) for at in range(3)] == ENTRIES


@given(st.binary(max_size=200), st.integers(0, 2**33))
def test_count_below_stays_within_the_file_whatever_is_in_it(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "scribbled.timeindex"
    path.write_bytes(content)
    count = TimeIndex(RealDisk(), path).count_below(limit)
    entries = list(struct.iter_unpack(">qI", content[: len(content) // 12 * 12]))
    assert 0 <= count <= len(entries)
    assert not count or entries[count - 1][1] < limit


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
def test_a_lost_sector_breaks_the_order_anywhere(
    tmp_path: Path, kind: type[OffsetIndex] | type[TimeIndex]
) -> None:
    index = kind(RealDisk(), tmp_path / "index")
    assert index.ascends((1, 0))
    index.append([(number, number * 10) for number in range(1, 500)], 0)
    assert index.ascends((1, 0))
    whole = index.path.read_bytes()
    for at in range(0, len(whole) - 512, 512):
        index.path.write_bytes(whole[:at] + bytes(512) + whole[at + 512 :])
        assert not index.ascends((1, 0))
