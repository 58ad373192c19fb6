"""Stalls of the event loop: their length and their cause.

A timer is due every millisecond. The loop checks its timers once per iteration, so the lateness of
the timer is the time that a request arriving at that moment would have waited. (libuv counts timers
in whole milliseconds: up to 1 ms of lateness means nothing.)

On a shared machine, an iteration is also late because others have the core. The kernel reports the
run-queue time of the loop's thread; the part that this process's threads did not use is subtracted,
which leaves the process's own share: work on the loop, waiting for the interpreter lock, blocking
calls. The subtracted time is reported, too.

The longest iteration by processor time of the loop's own thread is reported beside it: the loop's
own work, independent of other load.

Each stall is recorded with the processor time of the loop's thread and of all threads, and the time
of the garbage collector. A second thread, which otherwise sleeps, samples the stacks of all threads
while an iteration takes too long.

The road not taken: a chain of `call_soon` never lets the loop sleep, and takes the core from the
threads that the loop waits for.
"""

import asyncio
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_INTERVAL_S = 0.001
_LOOK_INTERVAL_S = 0.002
_LATE_S = 0.008
_STALL_S = 0.010
_STALLS_KEPT = 1000
_STALLS_TOLD = 3
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_FRAMES_KEPT = 6


@dataclass(slots=True)
class Stall:
    """One late iteration of the loop caused by this process. All times count from the previous
    iteration.

    Attributes:
        seconds: lateness, without `taken_seconds`.
        taken_seconds: time that other processes had the core while the loop's thread was runnable.
        in_line_seconds: run-queue time of the loop's thread, behind other processes and this one's
            threads.
        loop_cpu_seconds: processor time of the loop's thread.
        process_cpu_seconds: processor time of all threads.
        gc_seconds: time of the garbage collector.
        seen: stack samples of the loop's thread and the others.
    """

    seconds: float
    taken_seconds: float
    in_line_seconds: float
    loop_cpu_seconds: float
    process_cpu_seconds: float
    gc_seconds: float
    seen: dict[str, int]


class _Times(NamedTuple):
    """Processor time of the loop's thread and the process so far, and run-queue time of the thread,
    in seconds.
    """

    loop_cpu: float
    process_cpu: float
    in_line: float


class LoopMonitor:
    """Measures the running event loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._lateness: list[float] = []
        self._taken: list[float] = []
        self._cpu_max = 0.0
        self._stalls: list[Stall] = []
        self._due = self._turn = 0.0
        self._times = _Times(0.0, 0.0, 0.0)
        self._schedstat = -1
        self._gc_started = self._gc_seconds = 0.0
        self._seen: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start on the running loop."""
        looker = threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="monitor", daemon=True
        )
        if _SCHEDSTAT.exists():
            self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        gc.callbacks.append(self._collected)
        looker.start()
        self._times = self._now()
        self._arm()

    def stop(self) -> dict[str, Any]:
        """Stop; returns the results for JSON, with times in seconds."""
        assert self._timer is not None
        self._timer.cancel()
        self._stopped.set()
        gc.callbacks.remove(self._collected)
        if self._schedstat >= 0:
            os.close(self._schedstat)
        ordered = sorted(self._lateness)
        stalls = sorted(self._stalls, key=lambda stall: -stall.seconds)
        return {
            "turns": len(ordered),
            "max": ordered[-1],
            "p999": ordered[min(len(ordered) - 1, len(ordered) * 999 // 1000)],
            "above": sum(late > _STALL_S for late in ordered),
            "max_taken": max(self._taken),
            "max_cpu": self._cpu_max,
            "stalls": [asdict(stall) for stall in stalls[:_STALLS_TOLD]],
        }

    def _arm(self) -> None:
        self._turn = time.perf_counter()
        self._due = self._turn + _INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._tick)

    def _tick(self) -> None:
        late = time.perf_counter() - self._due
        before, self._times = self._times, self._now()
        loop_cpu, process_cpu, in_line = (now - then for now, then in zip(self._times, before, strict=True))
        taken = min(late, max(0.0, in_line - (process_cpu - loop_cpu)))
        self._lateness.append(late - taken)
        self._cpu_max = max(self._cpu_max, loop_cpu)
        self._taken.append(taken)
        if late - taken >= _LATE_S and len(self._stalls) < _STALLS_KEPT:
            self._stalls.append(
                Stall(late - taken, taken, in_line, loop_cpu, process_cpu, self._gc_seconds, dict(self._seen))
            )
        self._seen = Counter()
        self._gc_seconds = 0.0
        self._arm()

    def _now(self) -> _Times:
        in_line = 0.0
        if self._schedstat >= 0:
            in_line = int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9
        return _Times(time.thread_time(), time.process_time(), in_line)

    def _collected(self, phase: str, _about: dict[str, int]) -> None:
        # Collection stops the interpreter, whichever thread triggers it.
        if phase == "start":
            self._gc_started = time.perf_counter()
        else:
            self._gc_seconds += time.perf_counter() - self._gc_started

    def _look(self, loop_thread: int) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        while not self._stopped.wait(_LOOK_INTERVAL_S):
            if time.perf_counter() - self._turn < _LATE_S:
                continue
            for ident, frame in sys._current_frames().items():
                if ident == loop_thread:
                    self._seen[f"loop: {_where(frame)}"] += 1
                elif names.get(ident, "").startswith("pixy-") and not _waits(frame):
                    self._seen[f"{names[ident]}: {_where(frame)}"] += 1


def _waits(frame: FrameType) -> bool:
    """True for an idle worker."""
    return frame.f_code.co_name == "_run"


def _where(frame: FrameType | None) -> str:
    """The innermost frames, innermost first."""
    parts: list[str] = []
    while frame is not None and len(parts) < _FRAMES_KEPT:
        code = frame.f_code
        parts.append(f"{'/'.join(code.co_filename.split('/')[-2:])}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(parts)


@contextmanager
def watched(found: dict[str, Any], *, watch: bool) -> Iterator[None]:
    """Puts the monitor's results for the `with` block into `found["loop"]`, if `watch`."""
    if not watch:
        yield
        return
    monitor = LoopMonitor()
    monitor.start()
    try:
        yield
    finally:
        found["loop"] = monitor.stop()
