"""Settings of a process are made once, in a process of its own: they would be those of all tests."""

import subprocess
import sys

from tests.spark.conftest import ROOT

SET_UP_TWICE = """
import gc, sys
from pixy.spark.python_worker import set_up_worker

assert gc.get_freeze_count() == 0
set_up_worker()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
set_up_worker()
print(frozen > 10_000, gc.get_freeze_count() == frozen, sys.getswitchinterval())
"""


def test_what_was_imported_is_frozen_once_and_threads_switch_quickly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SET_UP_TWICE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True", "0.0005"]
