"""The command `pixy` as users run it, measured from its start to its end."""

import os
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple


class RanCommand(NamedTuple):
    """A command that has ended: seconds, seconds of a processor, most memory, and its output."""

    seconds: float
    processor_s: float
    memory_bytes: int
    output: str


def run_command(*arguments: object) -> RanCommand:
    """Run `pixy` with these arguments, which has to succeed."""
    command = [sys.executable, "-m", "pixy", *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        assert os.waitstatus_to_exitcode(status) == 0
        process.returncode = 0
        output.seek(0)
        return RanCommand(seconds, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss, output.read())
