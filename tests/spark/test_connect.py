"""The data source through Spark Connect, with a server on this machine."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT
from tests.spark.log import Log

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS_MAX = 900.0


def run(folder: Path, *arguments: str) -> list[str]:
    """The lines that a job prints itself."""
    output = folder / "output"
    # not a pipe: processes that the job leaves running would keep it open
    with output.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.connect_job", *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=SECONDS_MAX,
            check=False,
        )
    printed = output.read_text()
    assert done.returncode == 0, printed[-5000:]
    return [line for line in printed.splitlines() if line.startswith(("found", "registered", "copied"))]


def test_jobs_through_spark_connect_read_and_write(log: Log, tmp_path: Path) -> None:
    printed = run(tmp_path, log.options["pixy.address"], log.create(2), str(tmp_path))
    assert printed == ["found 100", "registered 100", "copied 100", "copied each 100"]


def test_a_server_without_the_package_takes_it_as_an_artifact(log: Log, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "pixy", tree / "pixy", ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(tmp_path / "pixy"), "zip", tree)
    printed = run(tmp_path, log.options["pixy.address"], log.create(2), str(tmp_path), archive)
    assert printed == ["found none: DATA_SOURCE_NOT_FOUND", "registered 100"]
