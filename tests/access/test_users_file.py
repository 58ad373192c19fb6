"""pixy/access/users_file.py: the file changes."""

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pixy.access import MECHANISMS, UsersFile, make_credential, user_line
from pixy.config import read_users


def line(name: str) -> str:
    credentials = {mechanism: make_credential(mechanism, name, bytes(16), 4096) for mechanism in MECHANISMS}
    return f"{user_line(name, credentials)}\n"


async def test_changes_are_used_and_faults_leave_the_old_users(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(line("alice"))
    file = UsersFile(str(path), read_users)
    assert list((await file.present()).credentials) == ["alice"]
    with capture_logs() as logs:
        path.write_text(line("alice") + line("bob"))
        found = await asyncio.gather(file.present(), file.present())
        assert [list(each.credentials) for each in found] == [["alice", "bob"]] * 2
        path.write_text("bob\n")
        assert list((await file.present()).credentials) == ["alice", "bob"]
        path.unlink()
        assert list((await file.present()).credentials) == ["alice", "bob"]
        os.mkfifo(path)
        assert list((await file.present()).credentials) == ["alice", "bob"]
    assert [each["log_level"] for each in logs] == ["info", "error", "error", "error"]
    assert logs[1]["reason"] == f"{path}: line 1: a user without a credential; pixy user NAME makes a line"
    assert logs[3]["reason"].endswith("it is not a regular file")


def test_a_file_that_cannot_be_used_has_no_users(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        UsersFile(str(tmp_path / "none"), read_users)
    large = tmp_path / "large"
    large.write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(ValueError, match="at most 4194304 are allowed"):
        UsersFile(str(large), read_users)
