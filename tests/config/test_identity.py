import os
import re

import pytest

from pixy.config import effective_client_id


def test_a_configured_client_id_is_kept() -> None:
    assert effective_client_id("worker-1") == "worker-1"


def test_the_default_client_id_has_host_and_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my host/ü")
    assert effective_client_id("") == f"pixy_my-host--_{os.getpid()}"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", effective_client_id(""))
