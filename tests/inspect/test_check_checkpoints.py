"""The checkpoints of a stopped node: each verdict, on files that are damaged byte by byte."""

from pathlib import Path

import pytest

from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_checkpoints
from pixy.storage import CheckpointId, CheckpointStore, RealDisk


def wrong(report: Report) -> list[tuple[str, str]]:
    """Findings other than ok: verdict and text."""
    return [(str(each.verdict), each.found) for each in report.findings if each.verdict is not Verdict.OK]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two checkpoints."""
    store = CheckpointStore(RealDisk(), tmp_path)
    store.write(CheckpointId(1, 10), [(b"k", b"old")], 1)
    store.write(CheckpointId(1, 20), [(b"k", b"new"), (b"l", b"new")], 2)
    return tmp_path


def checkpoints(directory: Path) -> tuple[int, Report]:
    """The end offset of the newest valid one, 0 if there is none."""
    report = Report(directory)
    newest = check_checkpoints(ReadOnlyDisk(), directory, report)
    return 0 if newest is None else newest.id.end_offset, report


def test_the_newest_of_two_checkpoints_is_used(state: Path) -> None:
    end, report = checkpoints(state)
    assert (end, wrong(report)) == (20, [])
    assert [each.found for each in report.findings] == [
        "1 records up to entry 10",
        "2 records up to entry 20",
    ]
    assert report.bytes == sum(path.stat().st_size for path in state.iterdir())


@pytest.mark.slow
def test_every_flipped_byte_of_a_checkpoint_is_damage(state: Path) -> None:
    path = state / CheckpointId(1, 20).file_name
    whole = path.read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0xFF
        path.write_bytes(data)
        end, report = checkpoints(state)
        assert (end, report.verdict) == (10, Verdict.DAMAGED), at


@pytest.mark.slow
def test_every_cut_of_a_checkpoint_is_damage(state: Path) -> None:
    path = state / CheckpointId(1, 20).file_name
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        end, report = checkpoints(state)
        assert (end, report.verdict) == (10, Verdict.DAMAGED), size


def test_leftovers_of_checkpoints_are_warnings_and_other_names_damage(state: Path) -> None:
    (state / "00000000000000000030-0000000001.checkpoint.part").write_bytes(b"x")
    (state / "00000000000000000015-0000000001.checkpoint").write_bytes(
        (state / CheckpointId(1, 10).file_name).read_bytes()
    )
    (state / "notes").write_bytes(b"x")
    assert sorted(wrong(checkpoints(state)[1])) == [
        ("damaged", "not a checkpoint: the next start is refused"),
        ("warning", "3 checkpoints: the next one removes all but two"),
        ("warning", "unfinished: the next start goes on with its download, or removes it"),
    ]
