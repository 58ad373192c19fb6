"""The clock of a node with peers: ticks of its raft groups, and beats.

After a pause of the whole process (a stopped machine, a suspended container) the messages that have
come meanwhile are handled first, and only then the clocks go on, by one tick: a follower that
counted the pause would depose a leader that it has heard from.
"""

import asyncio
from collections.abc import Callable

TICK_S = 0.1
_PAUSED_S = 0.5
_INBOX_TURNS = 3
"""Iterations of the event loop in which messages that came during a pause are read."""


class Ticker:
    """Calls a function ten times a second.

    Args:
        tick: the function.
        on_pause: told of a pause of the process, in seconds, behind it.
    """

    def __init__(self, tick: Callable[[], None], on_pause: Callable[[float], None]) -> None:
        self._tick = tick
        self._on_pause = on_pause
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin."""
        self._due = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._due, self._run)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        late = self._loop.time() - self._due
        if late > _PAUSED_S:
            self._on_pause(late)
            self._timer = self._loop.call_soon(self._read_inbox, _INBOX_TURNS)
            return
        self._tick_once()

    def _read_inbox(self, turns: int) -> None:
        if turns:
            self._timer = self._loop.call_soon(self._read_inbox, turns - 1)
        else:
            self._tick_once()

    def _tick_once(self) -> None:
        now = self._loop.time()
        # What was missed is not made up for.
        self._due = self._due + TICK_S if self._due + TICK_S > now else now + TICK_S
        self._timer = self._loop.call_at(self._due, self._run)
        self._tick()
