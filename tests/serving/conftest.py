"""Fixtures of all tests of connections."""

import pytest


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tick connections ten times as often, so that waiting for a tick is quick."""
    monkeypatch.setattr("pixy.serving.server._TICK_S", 0.1)
