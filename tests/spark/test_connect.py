"""The same source through Spark Connect, with a server on this machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT
from tests.spark.log import Log

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS_MAX = 240.0


def test_jobs_through_spark_connect_read_and_write(log: Log, tmp_path: Path) -> None:
    topic = log.create(2)
    output = tmp_path / "output"
    arguments = [log.options["pixy.address"], topic, str(tmp_path)]
    with output.open("wb") as file:  # not a pipe: what the job leaves running would keep it open
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
    assert [line for line in printed.splitlines() if line.startswith(("found", "registered", "copied"))] == [
        "found 100",
        "registered 100",
        "copied 100",
    ]
