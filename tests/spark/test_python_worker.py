"""Worker settings are applied once, tested in a separate process because they would affect all
tests.
"""

import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT

THREE_TASKS = """
import gc, sys
from pixy.spark.python_worker import set_up_worker

kept = []
for _ in range(3):
    set_up_worker()
    print(gc.get_freeze_count(), sys.getswitchinterval())
    kept.extend([] for _ in range(1000))
"""


@pytest.mark.slow
def test_imports_of_the_first_task_are_frozen_once_and_the_switch_interval_is_short() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREE_TASKS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    first, second, third = (line.split() for line in done.stdout.splitlines())
    assert first == ["0", "0.0005"]
    assert int(second[0]) > 10_000
    assert third == second
