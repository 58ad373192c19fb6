"""Choice among the addresses of `pixy.address`.

The driver begins at the first address, a task at the one that its id selects, so that tasks spread
over all of them and the next attempt of a task begins elsewhere. Which node leads a partition plays
no part: Spark (4.3) does not let a Python data source say where a task should run, and every node
takes every call.

An address that did not answer is avoided by all clients of its process for `AVOIDED_SECONDS`: a
dead one costs one time-out, and not one for each call. If all are avoided, none is.
"""

import os
import time
from collections.abc import Sequence

from pyspark import TaskContext

AVOIDED_SECONDS = 30.0

_until: dict[tuple[int, str], float] = {}
"""Time until which an address is avoided, by process id: a forked process tries them anew."""


def first_of_task() -> int:
    """Place of the address at which this task begins, before it is wrapped to their number; 0
    outside of tasks.
    """
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


def next_place(addresses: Sequence[str], place: int) -> int:
    """The first place from `place` on, cyclically, whose address is not avoided; `place`, wrapped,
    if all are.
    """
    now, process = time.monotonic(), os.getpid()
    places = [(place + each) % len(addresses) for each in range(len(addresses))]
    return next((each for each in places if _until.get((process, addresses[each]), 0) <= now), places[0])


def avoid(address: str) -> None:
    """Note that an address did not answer."""
    _until[os.getpid(), address] = time.monotonic() + AVOIDED_SECONDS


def answered(address: str) -> None:
    """Note that an address has answered."""
    _until.pop((os.getpid(), address), None)
