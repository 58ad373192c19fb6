import os
import re

import pytest

from pixy.config import effective_client_id


def test_a_configured_client_id_is_kept() -> None:
    assert effective_client_id("worker-1") == "worker-1"


def test_without_one_host_and_process_tell_processes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my host/ü")
    assert effective_client_id("") == f"pixy_my-host--_{os.getpid()}"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", effective_client_id(""))
