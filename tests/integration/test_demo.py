"""The demonstration for newcomers: each of its commands prints what it expects."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
SECONDS_MAX = 60.0


@pytest.mark.slow
@pytest.mark.process
def test_the_demonstration_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("That was it: the daemon has ended and its folder is gone.\n")
