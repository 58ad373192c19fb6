"""Priorities of the process's threads when they share a core.

The event loop works in bursts that every caller waits for, while background threads open and copy
files for milliseconds that no caller waits for. The kernel cannot know that: it gives each a core
for several milliseconds in turn, and the loop has to queue. So the loop requests a short time
slice, which makes Linux schedule it as soon as possible, and background threads get a higher nice
value.

All of this is a hint. Where the kernel does not support it (short time slices need Linux 6.12), it
has no effect.
"""

import ctypes
import os
import platform
import struct
import sys
import threading

_TURN_NS = 100_000
"""The shortest time slice that Linux accepts."""
_NICER = 5
"""Nice value increment of background threads: a third of the other threads' share while all compete
for one core.

With more, a background thread that is preempted while it has the interpreter lock would block all
others for longer on a busy machine.
"""
_NICENESS_MAX = 19

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Linux's `sched_attr`: size, policy, flags, nice value, priority, runtime, deadline, period."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(platform.machine()) if sys.platform == "linux" else None
"""Number of the system call; neither Python nor most C libraries have a wrapper for it."""


def run_soon() -> None:
    """Schedule the calling thread, and threads it starts, soon and with short time slices."""
    _schedule(nicer=0, turn_ns=_TURN_NS)


def run_in_background() -> None:
    """Give the other threads of the process precedence over the calling one."""
    _schedule(nicer=_NICER, turn_ns=0)


def _schedule(nicer: int, turn_ns: int) -> None:
    if _SCHED_SETATTR is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = min(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + nicer, _NICENESS_MAX)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, turn_ns, 0, 0)
    ctypes.CDLL(None).syscall(_SCHED_SETATTR, 0, attributes, 0)
