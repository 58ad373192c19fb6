"""Settings of the Python processes in which Spark runs tasks, made once in each by the first tasks of ours.

**Thread switches.** gRPC's thread asks for the interpreter lock several times a response: with Python's 5 ms, decoding would stop the
stream.

**Garbage collection.** Spark calls `gc.collect` after each task, which looks at every module that was ever imported: 45 ms of processor
time, as much as reading a hundred thousand rows. What there is when the second task begins stays for the life of the process: it is
frozen. Not what there is when the first one begins, which imports more on its way; and no garbage, because Spark has just collected it.
"""

import gc
import os
import sys

__all__ = ["set_up_worker"]

_SWITCH_SECONDS = 0.0005

_tasks: dict[int, int] = {}
"""Tasks that have begun, by process: a forked one begins anew."""


def set_up_worker() -> None:
    """Make the settings, as each task begins."""
    tasks = _tasks[os.getpid()] = _tasks.get(os.getpid(), 0) + 1
    if tasks == 1:
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
    elif tasks == 2:
        gc.freeze()
