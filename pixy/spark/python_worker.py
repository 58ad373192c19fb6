"""Settings of the Python processes in which Spark runs tasks, made once in each by the first task of ours.

**Garbage collection.** Spark calls `gc.collect` after each task, which looks at every module that was ever imported: 45 ms of processor
time, as much as reading a hundred thousand rows. What is there when the first task begins stays for the life of the process: it is frozen.

**Thread switches.** gRPC's thread asks for the interpreter lock several times a response: with Python's 5 ms, decoding would stop the
stream.
"""

import gc
import os
import sys
from functools import cache

__all__ = ["set_up_worker"]

_SWITCH_SECONDS = 0.0005


def set_up_worker() -> None:
    """Make the settings, unless this process has made them."""
    _set_up(os.getpid())


@cache
def _set_up(pid: int) -> None:
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
    gc.collect()
    gc.freeze()
