"""A real daemon that measures the steps of its event loop.

The daemon runs as `Daemon(folder, config, program=MEASURED)`; `take_steps(folder)` has its long
steps since they were last taken. Time is that of the processor, so that a busy machine changes
little.
"""

import asyncio
import asyncio.events
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

_ROOT = str(Path(__file__).parents[2])
MEASURED = (
    "-c",
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests.integration.measured_daemon import main; main()",
)
"""Program of a `Daemon`."""

_FILE = "steps"
_NOTED_S = 0.004


class Step(NamedTuple):
    """A callback of the loop, and its time on the processor in milliseconds."""

    ms: float
    what: str


def take_steps(folder: Path) -> list[Step]:
    """Steps of a daemon that took longer than 4 ms, since the last call."""
    path = folder / _FILE
    lines = path.read_text().splitlines()
    os.truncate(path, 0)
    return [Step(float(ms), what) for ms, _, what in (line.partition(" ") for line in lines)]


# --- in the daemon --------------------------------------------------------------------------------


def main() -> None:
    """Run pixy with the arguments of this process."""
    from pixy.cli import main as pixy

    sys.modules["uvloop"] = None  # type: ignore[assignment]  # its callbacks cannot be measured
    run = asyncio.events.Handle._run
    steps = Path(_FILE).open("a", buffering=1)  # noqa: SIM115 - until the process ends

    def measured(handle: asyncio.events.Handle) -> None:
        begun = time.thread_time()
        try:
            run(handle)
        finally:
            took_s = time.thread_time() - begun
            if took_s > _NOTED_S:
                task = getattr(handle._callback, "__self__", None) if handle._callback else None  # type: ignore[attr-defined]
                what = f"{handle!r} of {task!r}" if isinstance(task, asyncio.Task) else repr(handle)
                steps.write(f"{took_s * 1000:.1f} {' '.join(what.split())}\n")

    # The only way to see each step of an event loop.
    asyncio.events.Handle._run = measured  # type: ignore[method-assign, assignment]
    pixy()
