"""Which threads of the process run first when they share a core.

The event loop works in bursts that everybody waits for, and the threads behind it open and copy files for milliseconds that nobody waits
for. The system knows nothing of that: each in turn has a core for some milliseconds, and the loop stands in line. So the loop asks for
short turns, which makes Linux let it run as soon as it can; and threads of the background are nicer than it.

All of this is a hint, and where the system does not take it (Linux before 6.12 knows nothing of short turns), nothing happens.
"""

import ctypes
import os
import platform
import struct
import sys
import threading

__all__ = ["run_in_background", "run_soon"]

_TURN_NS = 100_000
"""The shortest turn that Linux takes."""
_NICER = 5
"""A third of the others' share while all want the same core. More would keep the interpreter lock from everybody for longer on a machine
with other work, if such a thread loses its core while it has the lock."""
_NICENESS_MAX = 19

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Linux's `sched_attr`: size, policy, flags, niceness, priority, runtime, deadline, period."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(platform.machine()) if sys.platform == "linux" else None
"""Number of the system call, for which Python and most C libraries have no name."""


def run_soon() -> None:
    """Let the calling thread, and those that it starts, have a core soon and for short turns."""
    _schedule(nicer=0, turn_ns=_TURN_NS)


def run_in_background() -> None:
    """Let the other threads of the process go before the calling one."""
    _schedule(nicer=_NICER, turn_ns=0)


def _schedule(nicer: int, turn_ns: int) -> None:
    if _SCHED_SETATTR is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = min(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + nicer, _NICENESS_MAX)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, turn_ns, 0, 0)
    ctypes.CDLL(None).syscall(_SCHED_SETATTR, 0, attributes, 0)
