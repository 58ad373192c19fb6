import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result

from pixy.cli import main

from .fake_server import FakePixy, start

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PIXY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIXY_CONTEXTS", str(tmp_path / "contexts.toml"))


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that run in this process may set up its logging."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def pixy() -> Iterator[FakePixy]:
    fake = FakePixy()
    server = start(fake)
    yield fake
    server.stop(0).wait()


@pytest.fixture
def run(pixy: FakePixy) -> Run:
    """Runs a client command against the fake server."""

    def invoke(*args: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, args, input=stdin, env={"PIXY_ADDRESS": pixy.address})

    return invoke


@pytest.fixture
def run_alone() -> Run:
    """Runs a command that needs no daemon."""

    def invoke(*args: str, **variables: Any) -> Result:
        return CliRunner().invoke(main, args, env=variables)

    return invoke
