"""A bound of memory that all consumer groups of a cluster share: the shell of `memory_turns`, which
decides. Owns the timer, and the calls that wait.
"""

import asyncio
from collections.abc import Iterable

from pixy.aio.futures import resolve
from pixy.consume.core import Alarm, Timers
from pixy.consume.memory.memory_turns import TURN_S, MemoryHolder, MemoryPlace, MemoryTurns, Turn
from pixy.errors import Unavailable

_LOOK_S = 0.1
"""Pause between two looks for memory to give back, while others wait."""
_TURNS_AT_ONCE = 100


class BoundedMemory:
    """Memory of all consumer groups of a cluster.

    Args:
        what: the things that are held, for the message to clients that wait too long.
        limit: the option that bounds them.
        bytes_max: bytes that may be held.
        timers: clock and timers.
        filling_max: places that may be filled at a time.
        filling_per_group_max: those of one group among them, if it has demand.

    Attributes:
        turns: what is decided, to be read only.
    """

    def __init__(
        self,
        what: str,
        limit: str,
        bytes_max: int,
        timers: Timers,
        *,
        filling_max: int = 1,
        filling_per_group_max: int = 1,
    ) -> None:
        self._what = what
        self._limit = limit
        self.turns = MemoryTurns(bytes_max, filling_max, filling_per_group_max)
        self._monotonic = timers.monotonic
        self._alarm = Alarm(timers, self._tick)
        # Calls that wait for their turn.
        self._calls: dict[MemoryPlace, asyncio.Future[None]] = {}
        # A look is in progress: whoever gives back meanwhile need not look.
        self._looking = False

    @property
    def held_bytes(self) -> int:
        """Bytes that are held or reserved."""
        return self.turns.held_bytes

    def ask(self, holder: MemoryHolder, size: int) -> MemoryPlace:
        """Queue a new place; `turn` is to follow. `size` is 0 if it is not known."""
        place = MemoryPlace(holder)
        self.ask_again(place, size)
        return place

    def ask_again(self, place: MemoryPlace, size: int) -> None:
        """Queue a place that is over."""
        self.turns.ask(place, size, self._monotonic())

    async def turn(self, place: MemoryPlace) -> None:
        """Wait until it is the turn of a place that is queued."""
        call = self._calls[place] = asyncio.get_running_loop().create_future()
        now = self._monotonic()
        self._look(now)
        self._tell((place,), now)
        await call

    def filled(self, place: MemoryPlace, size: int) -> bool:
        """The place takes so many bytes. False if there is no memory for them: then it is queued
        in front of the others.
        """
        turn = self.turns.filled(place, size, self._monotonic())
        _give_back(turn)
        if turn.place is not None:
            self._look(self._monotonic())
        return turn.place is not None

    def maybe_hold(self, place: MemoryPlace, size: int) -> bool:
        """Hold so many bytes that are there already, more than before. False if there is no memory
        for them, or others wait; then nothing has changed.
        """
        now = self._monotonic()
        if self.turns.maybe_hold(place, size, now):
            return True
        turn = self.turns.hold(place, size, now)
        _give_back(turn)
        return turn.place is not None

    def shrink(self, place: MemoryPlace, size: int) -> None:
        """A held place takes fewer bytes."""
        self.turns.shrink(place, size)
        if self.turns.has_waiting:
            self._look(self._monotonic())

    def release(self, place: MemoryPlace) -> None:
        """The memory of a place is dropped, or nobody waits for it any more."""
        self._calls.pop(place, None)
        self.turns.release(place)
        if self.turns.has_waiting:
            self._look(self._monotonic())
        else:
            self._alarm.cancel()

    def _look(self, now: float) -> None:
        """Give the next places their turns, if there is memory."""
        if self._looking:
            return
        self._looking = True
        try:
            left = _TURNS_AT_ONCE
            while left and (turn := self.turns.begin(now)) is not None:
                _give_back(turn)
                if turn.place is None:
                    break
                left -= 1
                resolve(self._calls.pop(turn.place), None)
        finally:
            self._looking = False
        if self.turns.has_waiting:
            self._alarm.at(now + (_LOOK_S if left else 0.0))
        else:
            self._alarm.cancel()

    def _tick(self, now: float) -> None:
        self.turns.look(now)
        self._look(now)
        self._tell(self.turns.waiting, now)

    def _tell(self, places: Iterable[MemoryPlace], now: float) -> None:
        # While one is filled the others may still fit.
        patience = TURN_S if self.turns.filling else 0.0
        for place in places:
            if (
                place in self._calls
                and not place.told
                and now - place.asked_at >= patience
                and place.in_demand(now)
            ):
                place.told = True
                place.holder.memory_waits(
                    Unavailable(
                        f"{self._what} have {self.turns.held_bytes} bytes, of {self.turns.bytes_max} "
                        f"(`{self._limit}`), and others are consumed; try again"
                    ).at_limit(self._limit)
                )


def _give_back(turn: Turn) -> None:
    for place in turn.given_back:
        place.holder.give_back()
