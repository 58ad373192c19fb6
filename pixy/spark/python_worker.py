"""Settings of Spark's Python worker processes, applied once per process by the first tasks.

**Switch interval.** gRPC's thread needs the interpreter lock several times per response: with
Python's default of 5 ms, decoding would stall the stream.

**Garbage collection.** Spark calls `gc.collect` after each task, which traverses every imported
module: 45 ms of processor time, as much as reading a hundred thousand rows. The objects that exist
when the second task begins live as long as the process, and are frozen. Freezing at the first task
would miss the modules that it imports; at the second there is no garbage to freeze, because Spark
has just collected it.
"""

import gc
import os
import sys

_SWITCH_SECONDS = 0.0005

_tasks: dict[int, int] = {}
"""Number of tasks started, by process id: a forked process starts at zero."""


def set_up_worker() -> None:
    """Apply the settings; called at the start of each task."""
    tasks = _tasks[os.getpid()] = _tasks.get(os.getpid(), 0) + 1
    if tasks == 1:
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
    elif tasks == 2:
        gc.freeze()
