"""Numbers of the process, as the system has them. Those that it does not have are left out."""

import asyncio
import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pixy import __version__
from pixy.metrics import Registry, Sample

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
_DESCRIPTORS = Path("/proc/self/fd")


async def add_process(registry: Registry, started_s: float) -> None:
    """Add the numbers of the process.

    Args:
        started_s: start of the process, in seconds since 1970.
    """
    numbers = {
        "process_cpu_seconds_total": time.process_time(),
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "process_start_time_seconds": started_s,
        "pixy_tasks": len(asyncio.all_tasks()),
        # A process with ten thousand connections takes milliseconds for it.
        **await asyncio.to_thread(_of_the_system),
    }
    for name, number in numbers.items():
        registry.add(name, lambda number=number: (Sample((), number),))  # type: ignore[misc]
    version = (__version__, platform.python_version())
    registry.add("pixy_build_info", lambda: (Sample(version, 1),))


def _of_the_system() -> dict[str, float]:
    return dict(_read())


def _read() -> Iterator[tuple[str, float]]:
    with suppress(OSError):
        virtual, resident, *_ = map(int, _STATM.read_text().split())
        yield "process_virtual_memory_bytes", virtual * _PAGE_BYTES
        yield "process_resident_memory_bytes", resident * _PAGE_BYTES
    with suppress(OSError):
        yield "process_open_fds", len(os.listdir(_DESCRIPTORS))
