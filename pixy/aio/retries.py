"""Repetition of what may succeed later: growing pauses, and a limit in time."""

import asyncio

from pixy.errors import PixyError


class Backoff:
    """Pauses that double up to a limit, in seconds.

    Args:
        first: the first pause, and the first one after `reset`.
        longest: no pause is longer.
    """

    __slots__ = ("_first", "_longest", "pause")

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        # The pause before the next attempt.
        self.pause = first

    def grow(self, longest: float | None = None) -> float:
        """The pause to make now; the next one is twice as long, `longest` at most."""
        pause = self.pause
        self.pause = min(2 * pause, self._longest if longest is None else longest)
        return pause

    def reset(self) -> None:
        """An attempt has succeeded."""
        self.pause = self._first


class Attempts:
    """The attempts of one request that may be sent more than once.

    Args:
        patience: seconds, from now on, in which another attempt may begin.
        backoff: pauses between attempts.
    """

    def __init__(self, patience: float, backoff: Backoff) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + patience
        self._backoff = backoff

    async def again(self, failure: PixyError) -> None:
        """Return when another attempt is due.

        Raises:
            PixyError: `failure`, that of the last attempt; the patience is used up.
        """
        if self._loop.time() + self._backoff.pause > self._until:
            raise failure
        await asyncio.sleep(self._backoff.grow())
