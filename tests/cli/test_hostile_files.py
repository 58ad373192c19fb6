"""Anything in place of files of a data directory is refused with a sentence before it is read."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.config import load_config
from pixy.daemon import Daemon
from pixy.errors import DataDirectoryError, PixyError
from tests.cluster.stopped import make_stopped

from .conftest import Run

pytestmark = pytest.mark.slow


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def make_sparse(path: Path) -> None:
    os.truncate(path, 40 << 30)


PATTERNS = {
    "identity": "identity",
    "partition identity": "topics/topic-0/identity",
    "journal": "journal/*.journal",
    "checkpoint": "state/*/*.checkpoint",
    "segment": "topics/topic-0/*.log",
}
NO_FILE = "it is not a regular file"
LARGE = "42949"
"""Begins its size, or what is left of it where a file is read in pieces until one is no batch."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stopped(tmp_path_factory.mktemp("cluster") / "default")


@pytest.fixture(params=PATTERNS)
def spoilt(request: pytest.FixtureRequest, original: Path, tmp_path: Path) -> Path:
    """A file of a copied data directory, to be spoilt."""
    node = shutil.copytree(original, tmp_path / "data" / "default")
    return sorted(node.glob(PATTERNS[request.param]))[0]


async def start(data: Path) -> None:
    flags = {"grpc_addr": "127.0.0.1:0", "peer_addr": "", "data_dir": str(data), "shutdown_timeout": "1s"}
    daemon = Daemon(load_config(None, {}, flags))
    await daemon.start()
    await daemon._drain_and_stop()


@pytest.mark.parametrize(
    ("make", "reason"), [(make_fifo, NO_FILE), (make_device, NO_FILE), (make_sparse, LARGE)]
)
def test_such_a_file_is_refused_by_every_command(
    spoilt: Path, tmp_path: Path, run_alone: Run, make: Callable[[Path], None], reason: str
) -> None:
    make(spoilt)
    for command in ("dump", "check"):
        for path in (tmp_path / "data", spoilt)[: 2 if command == "dump" else 1]:
            result = run_alone("storage", command, str(path))
            assert result.exit_code in (1, 2), result.output
            assert isinstance(result.exception, SystemExit), result.exception
            assert reason in result.output
            assert str(spoilt.name) in result.output
    if spoilt.suffix != ".log" or make is not make_sparse:
        with pytest.raises(PixyError, match=reason):
            asyncio.run(start(tmp_path / "data"))


def test_a_lock_that_is_no_file_is_refused(original: Path, tmp_path: Path, run_alone: Run) -> None:
    node = shutil.copytree(original, tmp_path / "data" / "default")
    make_fifo(node / "lock")
    assert run_alone("storage", "check", str(node)).exit_code == 2
    with pytest.raises(DataDirectoryError, match=NO_FILE):
        asyncio.run(start(tmp_path / "data"))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_dump_shows_no_secret(original: Path, run_alone: Run, options: list[str]) -> None:
    result = run_alone("storage", "dump", str(original), *options)
    assert result.exit_code == 0
    masked = '"secret": "********"'
    assert (masked if options else "secret=********") in result.stdout
    shown = result.stdout.replace(masked, "").replace("secret=********", "")
    assert "secret" not in shown
