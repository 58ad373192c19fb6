"""The programs for Spark on the pages for users, and the demonstration, do what the pages say."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.daemon import Daemon
from tests.integration.pages import ROOT, blocks_of
from tests.spark.jvm import jvm_options
from tests.spark.log import Log

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS = 300.0


class Programs:
    """The programs of the pages, run one after the other with the names of those before.

    Args:
        address: of the daemon, which the pages leave out or have by its default.
        folder: takes the checkpoints.
    """

    def __init__(self, address: str, folder: Path, names: dict[str, Any]) -> None:
        self._address = address
        self._folder = folder
        self._number = 0
        self.names = names

    def run(self, page: str, first: str) -> None:
        """Run the block that begins with this line."""
        (block,) = [each for each in blocks_of(page) if each.first.startswith(first)]
        self._number += 1
        text = block.text.replace("127.0.0.1:19091", self._address)
        text = text.replace('format("pixy")', f'format("pixy").option("pixy.address", "{self._address}")')
        text = text.replace("/tmp/c", str(self._folder / f"checkpoint-{self._number}"))
        exec(compile(text, page, "exec"), self.names)


def test_the_programs_of_the_pages_run(
    spark: SparkSession,
    daemon: Daemon,
    log: Log,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    programs = Programs(daemon.address, tmp_path, {})
    programs.run("README.md", "import os, sys")
    assert capsys.readouterr().out.startswith("1000 Row(value=")
    rows = programs.names["rows"]
    rows.write.format("pixy").option("pixy.address", daemon.address).option("topic", "events").mode(
        "append"
    ).save()
    programs.run("docs/spark.md", "import os, sys")
    query = programs.names["query"]
    query.processAllAvailable()
    query.stop()
    programs.run("docs/spark.md", "def write(")
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    copies = spark.read.format("pixy").option("pixy.address", daemon.address).option("subscribe", "copies")
    assert copies.load().count() >= 1000


def test_the_demonstration_of_a_pipeline_ends_well() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIXY_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_spark.py")],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**environment, "JDK_JAVA_OPTIONS": jvm_options()},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as a batch job over all of them says\n" in done.stdout
