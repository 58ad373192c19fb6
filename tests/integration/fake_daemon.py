"""A real daemon in front of the in-memory cluster of the tests, in place of the embedded log:
`Daemon(folder, config, program=FAKE)`.
"""

from pathlib import Path
from typing import Any
from unittest import mock

from pixy.backend import Backend
from tests.fakes.backend import FakeBackend

_ROOT = str(Path(__file__).parents[2])
FAKE = (
    "-c",
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests.integration.fake_daemon import main; main()",
)
"""Program of a `Daemon`."""


def _fake_backend(*_: Any) -> Backend:
    return FakeBackend()


def main() -> None:
    """Run `pixy` with the arguments of this process."""
    from pixy.cli import main as pixy_command

    with mock.patch("pixy.daemon.Daemon._embedded_backend", _fake_backend):
        pixy_command()
