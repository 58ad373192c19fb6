"""Secrets in files that change."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pixy.peers import SharedSecrets
from tests.fakes.odd_files import odd_file

OLD, NEW = b"0123456789abcdef" * 2, b"fedcba9876543210" * 2


def write(path: Path, secret: bytes) -> None:
    """Replace a file atomically."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(secret + b"\n")
    new.replace(path)


def test_secrets_are_read_again_when_their_files_change(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, OLD)
    secrets = SharedSecrets(str(first), str(second))
    assert secrets() == (OLD,)
    write(second, NEW)
    assert secrets() == (OLD, NEW)
    write(first, NEW)
    write(second, OLD)
    assert secrets() == (NEW, OLD)
    second.unlink()
    assert secrets() == (NEW,)


@pytest.mark.parametrize("damage", ["short", "gone", "open", "fifo", "device", "directory", "large"])
@pytest.mark.timeout(20)
def test_secrets_that_cannot_be_used_change_nothing(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "secret"
    write(path, OLD)
    secrets = SharedSecrets(str(path))
    with capture_logs() as logs:
        if damage == "short":
            write(path, b"short")
        elif damage == "gone":
            path.unlink()
        elif damage == "open":
            path.chmod(0o644)
        else:
            odd_file(path, damage)
        assert secrets() == secrets() == (OLD,)
    assert [entry["log_level"] for entry in logs] == ["error"]


@pytest.mark.timeout(20)
def test_a_second_secret_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, OLD)
    write(second, NEW)
    secrets = SharedSecrets(str(first), str(second))
    odd_file(second, "fifo")
    assert secrets() == (OLD, NEW)


def test_a_node_does_not_start_without_its_secret(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        SharedSecrets(str(tmp_path / "none"))
