"""Turns in which consumer groups join and leave, so that thousands of new ones hold up nobody.

A join is a read and a command that every node applies, then a target and the first commits. Some
are under way at a time, those of one client address have a share of them, and addresses take turns:
so a new group waits for few others of other clients, and an iteration of the event loop has a part
in few joins.

A turn ends after a second at the latest, and what is under way goes on: joins that wait for a
leader of their own hold up few others.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pixy.aio.address_quota import AddressSemaphore
from pixy.client_address import share_of
from pixy.consume.core.timers import Alarm, Timers

_UNDER_WAY = 64
_TURN_S = 1.0


class JoinTurns:
    """Turns of all consumer groups of one proxy.

    Args:
        timers: clock and timers.
        share_percent: part of them that the groups of one client address may have at a time.
    """

    def __init__(self, timers: Timers, share_percent: int) -> None:
        self._timers = timers
        self._semaphore = AddressSemaphore(_UNDER_WAY, share_of(_UNDER_WAY, share_percent))
        # Turns that have not ended, with their addresses and begins, the oldest first.
        self._turns: dict[object, tuple[str, float]] = {}
        self._late = Alarm(timers, self._end_late)

    def waiting(self, address: str) -> int:
        """Number of groups of an address that wait for a turn."""
        return self._semaphore.queued_by(address)

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn of a client address, which ends with the `with` block at the latest."""
        if self._turns and not self._semaphore.available(address, 1):
            self._watch()
        await self._semaphore.acquire(address, 1)
        turn = object()
        self._turns[turn] = address, self._timers.monotonic()
        try:
            yield
        finally:
            self._end(turn)

    def _end(self, turn: object) -> None:
        if turn in self._turns:
            address, _ = self._turns.pop(turn)
            self._semaphore.release(address, 1)
            if not self._turns:
                self._late.cancel()

    def _end_late(self, now: float) -> None:
        """End the turns that take long."""
        for turn, (_, begun) in list(self._turns.items()):
            if begun + _TURN_S > now:
                break
            self._end(turn)
        if self._turns and self._semaphore.queued:
            self._watch()

    def _watch(self) -> None:
        _, begun = next(iter(self._turns.values()))
        self._late.at(begun + _TURN_S)
