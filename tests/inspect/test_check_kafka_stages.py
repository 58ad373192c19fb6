"""Checks of the stages of a stopped daemon in front of Kafka: intact, damaged in every way, and
found below a `data_dir`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.errors import DataDirectoryError
from pixy.inspect import ReadOnlyDisk, Verdict, check_directory, node_directories
from pixy.proto.state_pb2 import PublishStages
from pixy.records import crc32c
from pixy.staging import KAFKA_CLUSTER_ID, write_mark
from pixy.staging.stage_files import StageFiles
from pixy.storage import RealDisk, run_steps
from tests.cluster.stopped import contents, make_stopped
from tests.staging.stages import piece_of, seal_stage

pytestmark = pytest.mark.slow

DISK = RealDisk()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two stages, one of them being published."""
    directory = tmp_path / "data" / "remote" / "kafka"
    for number in (1, 2):
        files = StageFiles(DISK, directory / "staging", number)
        piece = piece_of(b"1", b"2")
        run_steps(files.write(0, [piece]))
        run_steps(files.seal(KAFKA_CLUSTER_ID, "sink", f"stage-{number}", [crc32c(piece.batches)]))
    mark = PublishStages(sink_id="sink", epoch=7, query_id="query", stage_ids=["stage-1"])
    write_mark(DISK, directory / "publishing", 1, mark)
    (directory / "lock").touch()
    return directory


def findings(directory: Path) -> list[str]:
    """Findings of a check; proves that it changes nothing."""
    before = contents(directory)
    report = check_directory(ReadOnlyDisk(), directory)
    assert contents(directory) == before
    return [
        f"{each.verdict} {each.where.removeprefix(str(directory) + '/')}: {each.found}"
        for each in report.findings
    ]


MARK = "publishing/00000000000000000001"
STAGE = "staging/00000000000000000001"


def test_stages_and_publications_in_progress_are_found(directory: Path) -> None:
    assert findings(directory) == [
        f"ok staging/{number:020d}: stage stage-{number} of sink sink: 2 records, 138 bytes"
        for number in (1, 2)
    ] + [f"ok {MARK}: epoch 7 of sink sink is not settled: the next start asks Kafka"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def one_part(directory: Path) -> Path:
    (part,) = (directory / STAGE).glob("*.batches")
    return part


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda at: flip(one_part(at)),
            f"damaged {MARK}: epoch 7 of sink sink is not settled, and its stages stage-1",
        ),
        (lambda at: one_part(at).unlink(), f"damaged {STAGE}: "),
        (lambda at: flip(at / STAGE / "stage"), f"damaged {STAGE}/stage: is damaged"),
        (lambda at: shutil.rmtree(at / STAGE), f"ok {MARK}: epoch 7"),
        (
            lambda at: (at / STAGE / "stage").unlink(),
            f"warning {STAGE}: never sealed: removed by the next start",
        ),
        (lambda at: flip(at / MARK), f"damaged {MARK}: is damaged: the next start is refused"),
        (lambda at: (at / MARK).write_bytes(b""), f"damaged {MARK}: has 0 bytes"),
        (lambda at: (at / f"{MARK}.part").touch(), f"warning {MARK}.part: left from a crash"),
        (lambda at: (at / "publishing/notes").touch(), "damaged publishing/notes: not a publication"),
        (lambda at: (at / "notes").touch(), "warning notes: does not belong here"),
        (
            lambda at: seal_stage(DISK, at / "staging", 3, piece_of(b"1")),
            "damaged staging/00000000000000000003: belongs to another cluster",
        ),
    ],
)
def test_damage_is_reported(directory: Path, damage: Callable[[Path], object], expected: str) -> None:
    damage(directory)
    found = findings(directory)
    assert any(each.startswith(expected) for each in found), found


def test_a_directory_in_use_is_refused(directory: Path) -> None:
    lock = DISK.lock(directory / "lock")
    assert lock is not None
    with pytest.raises(DataDirectoryError, match="is in use by another process"):
        check_directory(ReadOnlyDisk(), directory)
    lock.close()
    assert check_directory(ReadOnlyDisk(), directory).verdict is Verdict.OK


def test_a_data_dir_stands_for_stages_too(directory: Path) -> None:
    data_dir = directory.parent.parent
    make_stopped(data_dir / "default")
    for asked, expected in (
        (directory, [directory]),
        (directory.parent, [directory]),
        (data_dir, [data_dir / "default", directory]),
    ):
        assert node_directories(ReadOnlyDisk(), asked) == expected


def test_a_cluster_whose_kind_was_changed_has_a_node_and_stages(directory: Path) -> None:
    make_stopped(directory.parent.parent / "default")
    shutil.copytree(directory.parent.parent / "default", directory.parent, dirs_exist_ok=True)
    assert node_directories(ReadOnlyDisk(), directory.parent) == [directory.parent, directory]
    assert not [each for each in findings(directory.parent) if each.startswith("warning")]


def test_a_directory_without_stages_is_empty(tmp_path: Path) -> None:
    (tmp_path / "remote" / "kafka").mkdir(parents=True)
    (tmp_path / "remote" / "kafka" / "lock").touch()
    assert node_directories(ReadOnlyDisk(), tmp_path) == [tmp_path / "remote" / "kafka"]
    assert findings(tmp_path / "remote" / "kafka") == []
