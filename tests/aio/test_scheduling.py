"""pixy/aio/scheduling.py: scheduling attributes of threads, as reported by the system."""

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.aio.scheduling import run_in_background, run_soon

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have a schedule of their own on Linux"
)


def schedule_after(*steps: Callable[[], None]) -> tuple[int, int | None]:
    """Niceness of a thread after these steps, and its time slice in nanoseconds if the system
    reports it.
    """
    seen: list[tuple[int, int | None]] = []

    def take() -> None:
        for step in steps:
            step()
        thread_id = threading.get_native_id()
        told = re.search(r"se\.slice\s*:\s*(\d+)", Path(f"/proc/self/task/{thread_id}/sched").read_text())
        turn_ns = int(told[1]) if told else None
        seen.append((os.getpriority(os.PRIO_PROCESS, thread_id), turn_ns))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return seen[0]


def test_a_prompt_thread_has_short_time_slices_and_the_same_niceness() -> None:
    niceness, turn_ns = schedule_after()
    soon = schedule_after(run_soon)
    assert soon == (niceness, None if turn_ns is None else 100_000)


def test_a_background_thread_is_nicer_with_usual_time_slices_whoever_started_it() -> None:
    niceness, turn_ns = schedule_after()
    assert schedule_after(run_soon, run_in_background) == (min(niceness + 5, 19), turn_ns)


def test_niceness_stays_within_the_limit_of_the_system() -> None:
    assert schedule_after(*[run_in_background] * 5)[0] == 19


def test_a_thread_with_a_schedule_keeps_it() -> None:
    def batch() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def check() -> None:
        kept.append(os.sched_getscheduler(0))

    kept: list[int] = []
    niceness = schedule_after(batch, run_in_background, check)[0]
    assert (kept, niceness) == ([os.SCHED_BATCH], schedule_after()[0])
