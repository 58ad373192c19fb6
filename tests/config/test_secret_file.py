from pathlib import Path

import pytest

from pixy.config import check_regular, load_config, read_secret
from pixy.errors import ConfigError
from tests.fakes.odd_files import odd_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789abcdef\n")
    path.chmod(0o600)
    return path


def test_a_secret_is_read_without_the_line_end(file: Path) -> None:
    assert read_secret(str(file)) == b"0123456789abcdef"


def test_the_group_may_read_it(file: Path) -> None:
    file.chmod(0o640)
    assert read_secret(str(file)) == b"0123456789abcdef"


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601])
def test_a_secret_for_everybody_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(
        ValueError, match=f"accessible to every user of this machine, with mode {mode:o}: chmod"
    ):
        read_secret(str(file))


@pytest.mark.parametrize("secret", [b"", b"\n", b" 0123456789abcde \n"])
def test_a_short_secret_is_refused(file: Path, secret: bytes) -> None:
    file.write_bytes(secret)
    with pytest.raises(
        ValueError, match=f"has a secret of {len(secret.strip())} bytes, at least 16 are needed"
    ):
        read_secret(str(file))


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "large"])
@pytest.mark.timeout(20)
def test_what_is_no_file_of_a_bounded_size_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """To open a FIFO waits for a writer, and nodes read on their event loop."""
    path = odd_file(tmp_path / "odd", kind)
    reason = r"it has \d+ bytes, at most \d+ are allowed" if kind == "large" else "it is not a regular file"
    with pytest.raises(ValueError, match="odd cannot be read: "):
        read_secret(str(path))
    with pytest.raises(OSError, match=reason):
        check_regular(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none cannot be read: No such file or directory"):
        read_secret(str(tmp_path / "none"))


def test_a_secret_that_cannot_be_used_is_a_problem_of_the_configuration(file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(ConfigError) as raised:
        load_config(None, {"PIXY_CLUSTER__SECRET_FILE": str(file)}, {})
    assert str(raised.value) == (
        f"PIXY_CLUSTER__SECRET_FILE: cluster.secret_file {file} is accessible to every user of this machine, with mode 644: "
        f"chmod o= {file}"
    )
