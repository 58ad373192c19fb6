"""Work on another thread, one piece at a time, in the order of the calls.

For work that needs much memory, or the interpreter for long: several pieces at a time would be no
quicker. Cancelling a call ends the wait, not the work, and the next piece begins when it has ended.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pixy.aio.byte_semaphore import ByteSemaphore

T = TypeVar("T")


class OneThread:
    """Runs functions on another thread."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = ByteSemaphore(1)

    @property
    def is_idle(self) -> bool:
        """True if a call would run its function at once."""
        return self._turn.available(1)

    async def run(self, function: Callable[[], T]) -> T:
        """The result of the function; its exception is raised."""
        await self._turn.acquire(1)
        work = asyncio.get_running_loop().run_in_executor(None, function)
        work.add_done_callback(self._ended)
        try:
            return await asyncio.shield(work)
        finally:
            # An exception refers to this frame, which refers to it, and its frames to much memory.
            del work

    def _ended(self, work: "asyncio.Future[T]") -> None:
        self._turn.release(1)
        if not work.cancelled():
            work.exception()  # not reported as never retrieved if nobody waits any more
