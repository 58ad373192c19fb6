"""A profile of processor time, by samples of the stacks of all threads.

A thread of its own looks a hundred times a second at each thread that has used processor time since
the last look, and charges that time to its present stack. The result has a line for each stack,
outermost frame first, with microseconds: the folded form that flame graphs and speedscope take.

The looking thread gets the interpreter when another one lets it go: within half a millisecond of
code without system calls, at the next one otherwise. So on a busy event loop writes stand for what
precedes them, too.

The roads not taken: `cProfile` slows every call down, and does not see other threads. A timer with
a signal (`ITIMER_PROF`) looks at any instruction, but interrupts system calls of all threads, those
of the journal among them.
"""

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

_INTERVAL_S = 0.01
_FRAMES_MAX = 100
_STACKS_MAX = 20_000
_TASKS = Path("/proc/self/task")


def profile(seconds: float, stop: threading.Event) -> str:
    """Profile all threads but this one; call it on a thread of its own.

    Args:
        seconds: duration.
        stop: set to end it early.
    """
    stacks: Counter[str] = Counter()
    used = _Used()
    used.since_last_look()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop.wait(_INTERVAL_S):
        frames = sys._current_frames()
        for name, ident, us in used.since_last_look():
            frame = frames.get(ident)
            if frame is not None and us:
                stack = f"{name};{_folded(frame)}"
                if stack in stacks or len(stacks) < _STACKS_MAX:
                    stacks[stack] += us
        del frames
    return "".join(f"{stack} {us}\n" for stack, us in stacks.most_common())


class _Used:
    """Processor time of threads."""

    def __init__(self) -> None:
        # Nanoseconds at the last look, by the system's id.
        self._seen: dict[int, int] = {}

    def since_last_look(self) -> list[tuple[str, int, int]]:
        """Name, identity and microseconds of each thread but this one."""
        found, seen = [], {}
        for thread in threading.enumerate():
            native, ident = thread.native_id, thread.ident
            if native is None or ident is None or ident == threading.get_ident():
                continue
            try:
                used = int((_TASKS / str(native) / "schedstat").read_text().split()[0])
            except (OSError, ValueError, IndexError):
                # It has ended, or the system does not tell: every look counts the same.
                used = self._seen.get(native, 0) + int(_INTERVAL_S * 1e9)
            seen[native] = used
            found.append((thread.name, ident, (used - self._seen.get(native, used)) // 1000))
        self._seen = seen
        return found


def _folded(innermost: FrameType) -> str:
    names: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(names) < _FRAMES_MAX:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}.{code.co_qualname}:{frame.f_lineno}".replace(";", ","))
        frame = frame.f_back
    return ";".join(reversed(names))
