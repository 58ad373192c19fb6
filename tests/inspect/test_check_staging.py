"""Checks of stages: the verdicts of the table. `test_staging_decisions` proves refused starts."""

from pathlib import Path

from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_staging
from pixy.storage import RealDisk
from tests.staging.stages import TOPIC_ID, piece_of, seal_stage
from tests.storage.logs import CLUSTER_ID


def check(directory: Path) -> tuple[dict[tuple[str, str], bool], list[tuple[Verdict, str, str]]]:
    report = Report(directory)
    found = check_staging(ReadOnlyDisk(), directory / "staging", CLUSTER_ID, report)
    return found, [(each.verdict, each.where, each.found) for each in report.findings]


def make(tmp_path: Path) -> Path:
    seal_stage(RealDisk(), tmp_path / "staging", 1, piece_of(b"a", b"b"))
    seal_stage(RealDisk(), tmp_path / "staging", 2, piece_of(b"c"), sink="other")
    return tmp_path / "staging"


def test_whole_stages_are_told_with_what_is_in_them(tmp_path: Path) -> None:
    make(tmp_path)
    found, findings = check(tmp_path)
    assert found == {("sink", "stage-1"): True, ("other", "stage-2"): True}
    assert [verdict for verdict, _, _ in findings] == [Verdict.OK, Verdict.OK]
    assert findings[0][2].startswith("stage stage-1 of sink sink: 2 records, ")


def test_a_damaged_batch_is_told_with_its_file_and_byte_and_the_others_are_judged(tmp_path: Path) -> None:
    path = make(tmp_path) / f"{1:020d}" / f"{TOPIC_ID.hex()}-0.batches"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found, findings = check(tmp_path)
    assert found == {("sink", "stage-1"): False, ("other", "stage-2"): True}
    (damage,) = [each for each in findings if each[0] is Verdict.DAMAGED]
    assert damage[1] == path.relative_to(tmp_path).as_posix()
    assert f"byte {len(data) // 2}" in damage[2]


def test_what_lies_behind_a_part_is_not_judged(tmp_path: Path) -> None:
    path = make(tmp_path) / f"{1:020d}" / f"{TOPIC_ID.hex()}-0.batches"
    path.write_bytes(path.read_bytes() + b"of a segment")
    assert check(tmp_path)[0] == {("sink", "stage-1"): True, ("other", "stage-2"): True}


def test_no_directory_is_no_stage(tmp_path: Path) -> None:
    assert check(tmp_path) == ({}, [])
