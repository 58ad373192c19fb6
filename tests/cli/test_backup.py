"""pixy/cli/backup.py: backups in a target are listed, verified, removed and restored."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pixy.backup import Manifest, open_target
from pixy.backup.object_names import manifest_path
from pixy.cli import main
from tests.backup.test_create import back_up, filled

pytestmark = pytest.mark.slow


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "target")


@pytest.fixture
def manifests(target: str) -> list[Manifest]:
    source = filled(4)
    found = []
    for number in range(3):
        found.append(back_up(source, open_target(target), time_ms=number)[0])
        source.append(0, b"more")
    return found


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result


def test_backups_are_listed(target: str, manifests: list[Manifest]) -> None:
    lines = run("backup", "list", target).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["BACKUP", *(each.id for each in manifests)]
    shown = json.loads(run("backup", "list", target, "--json").stdout)
    assert [each["messages"] for each in shown] == [each.records for each in manifests]
    assert shown[0]["topics"] == ["topic"]
    assert shown[0]["time"] == "1970-01-01T00:00:05+00:00"


def test_a_target_without_backups_is_empty(target: str) -> None:
    assert json.loads(run("backup", "list", target, "--json").stdout) == []
    assert "has no backup" in run("backup", "verify", target, code=1).stderr


def test_half_a_manifest_is_told_and_not_listed(target: str, manifests: list[Manifest]) -> None:
    path = Path(target, manifest_path(manifests[1].id))
    path.write_bytes(path.read_bytes()[:-1])
    result = run("backup", "list", target)
    assert f"backup {manifests[1].id} is damaged" in result.stderr
    assert len(result.stdout.splitlines()) == 3


def test_damage_is_found(target: str, manifests: list[Manifest]) -> None:
    assert ": ok, 1 topic with 18 messages" in run("backup", "verify", target).stdout
    path = next(iter(manifests[0].paths()))
    Path(target, path).unlink()
    run("backup", "verify", target)
    result = run("backup", "verify", target, manifests[0].id, code=1)
    assert f"damaged: {path} is missing" in result.stdout
    shown = json.loads(run("backup", "verify", target, manifests[0].id, "--json", code=1).stdout)
    assert shown["damaged"] == [f"{path} is missing"]


def test_old_backups_are_removed(target: str, manifests: list[Manifest]) -> None:
    assert "name backups" in run("backup", "prune", target, code=2).stderr
    assert "would remove 2 backups" in run("backup", "prune", target, "--keep", 1, "--dry-run").stdout
    assert len(json.loads(run("backup", "list", target, "--json").stdout)) == 3
    assert run("backup", "prune", target, "--keep", 1).stdout.startswith("removed 2 backups and 2 objects")
    shown = json.loads(run("backup", "list", target, "--json").stdout)
    assert [each["backup"] for each in shown] == [manifests[2].id]
    run("backup", "verify", target)
    result = run("backup", "prune", target, manifests[2].id, "--json")
    assert json.loads(result.stdout)["backups"] == [manifests[2].id]


def test_a_backup_becomes_a_directory(target: str, manifests: list[Manifest], tmp_path: Path) -> None:
    data = tmp_path / "data"
    result = run("restore", target, data, "--backup", manifests[0].id, "--json")
    assert json.loads(result.stdout)["messages"] == manifests[0].records
    assert "ok: checked" in run("storage", "check", data).stdout
    assert "is not empty" in run("restore", target, data, code=1).stderr
    run("restore", target, data, "--entry", "other", "--before", "1970-01-01T00:00:01.003Z")
    assert "offsets 0 to 2 in" in run("storage", "check", data / "other").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--before", "never"], "--before"),
        (["--backup", "never"], "is no id of a backup"),
        (["--topics", "none"], "has no topic none"),
    ],
)
def test_what_is_wrong_is_told(
    target: str, manifests: list[Manifest], tmp_path: Path, arguments: list[str], text: str
) -> None:
    result = CliRunner().invoke(main, ["restore", target, str(tmp_path / "data"), *arguments])
    assert result.exit_code in (1, 2)
    assert text in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_directory_that_is_half_restored_is_told(
    target: str, manifests: list[Manifest], tmp_path: Path
) -> None:
    run("restore", target, tmp_path)
    (tmp_path / "default" / "restoring").touch()
    result = run("storage", "check", tmp_path, code=1)
    assert "run `pixy restore` once more" in result.stdout


def test_no_daemon_is_told(target: str) -> None:
    result = run("backup", "create", target, "--address", "127.0.0.1:1", "--timeout", "0.1", code=1)
    assert "failed to connect" in result.stderr.lower() or "cannot reach" in result.stderr
    assert "--rate" in run("backup", "create", target, "--rate", "fast", code=2).stderr
