"""Polling, for conditions that nothing signals: a broker, another process, a task that sets no
event.

The time this takes depends on the machine. `PATIENCE_S` only ends a test that would hang.
"""

import asyncio
import inspect
import time
from collections.abc import Callable

PATIENCE_S = 120.0

_TURNS = 100
_LOOK_EVERY_S = 0.002


async def settle(turns: int = 30) -> None:
    """Run everything that can run without advancing the clock, by a number of event loop
    iterations.
    """
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(holds: Callable[[], object]) -> None:
    """Return when a condition holds, which may be a coroutine function.

    It is checked in each iteration of the event loop, and every 2 ms if that takes long.
    """
    looks = 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = holds()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            looks += 1
            await asyncio.sleep(0 if looks < _TURNS else _LOOK_EVERY_S)


def until_blocking(holds: Callable[[], object], why_not: Callable[[], str] = str) -> None:
    """`until` for another process or thread, without an event loop.

    Args:
        why_not: text of the failure, for instance a log.
    """
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at, f"it did not come to hold in {PATIENCE_S:.0f} s; {why_not()}"
        time.sleep(_LOOK_EVERY_S)
