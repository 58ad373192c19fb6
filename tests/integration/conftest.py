"""Daemons for tests: each test has its own, in its own directory, and none outlives the test."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon import Daemon

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    """A factory of unstarted daemons; those still running at the end of the test are killed."""
    daemons: list[Daemon] = []

    def make(config: Mapping[str, Any] | None = None, folder: str = "") -> Daemon:
        daemon = Daemon(tmp_path / (folder or f"daemon-{len(daemons)}"), config)
        daemons.append(daemon)
        return daemon

    yield make
    for daemon in daemons:
        daemon.kill()


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    """A running daemon with the default options."""
    running = make_daemon()
    running.start()
    return running
