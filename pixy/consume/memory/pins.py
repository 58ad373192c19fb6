"""The right of a fetched batch to stay until it is decompressed.

Batches that wait for their decompression are read by nobody, and could fill the memory of fetched
batches. So a part of that memory is for those that stay until then; the others are dropped when
somebody needs their memory, and keep their position.

    none -> held -> over: decompressed, or taken by another one with more need
     |       ^
     v       |
    dropped -> waiting, without memory: the batch is fetched again once it may stay

So each partition has its turn of decompression in the order in which it has asked, one of each
group after the other, and those that wait for it are in nobody's way. Small batches have a part of
their own, as they are decompressed apart from large ones.
"""

from typing import NamedTuple, Protocol

from pixy.consume.core import Timers
from pixy.consume.memory.bounded_memory import BoundedMemory
from pixy.consume.memory.memory_turns import Demand, MemoryPlace
from pixy.errors import Unavailable

_LARGE_SHARE = 4
_SMALL_SHARE = 8
"""Parts of the bound of fetched batches, as divisors."""
_TURNS_MAX = 1000
_TURNS_PER_GROUP_MAX = 8


class Pins(NamedTuple):
    """Bytes of fetched batches that stay until they are decompressed, in all consumer groups."""

    large: BoundedMemory
    small: BoundedMemory


def bounded_pins(fetched_bytes_max: int, timers: Timers) -> Pins:
    """Parts of the memory of fetched batches."""
    large, small = (
        BoundedMemory(
            "fetched batches that wait for their decompression",
            "consumer.max_fetched_bytes",
            fetched_bytes_max // share,
            timers,
            filling_max=_TURNS_MAX,
            filling_per_group_max=_TURNS_PER_GROUP_MAX,
        )
        for share in (_LARGE_SHARE, _SMALL_SHARE)
    )
    return Pins(large, small)


class PinHolder(Protocol):
    """The memory of a partition of a consumer group, as its pin sees it."""

    group: str

    @property
    def position(self) -> int:
        """The next offset to offer."""

    def demand(self, now: float) -> Demand:
        """Demand for records of the partition."""

    def memory_waits(self, error: Unavailable) -> None:
        """It cannot stay yet."""


class Pin:
    """Pin of the next batch of one partition.

    Args:
        memory: bytes of all pins of its sort.
        holder: the partition.

    Attributes:
        held: the batch stays.
    """

    __slots__ = ("_holder", "_place", "_waits", "held", "memory")

    def __init__(self, memory: BoundedMemory, holder: PinHolder) -> None:
        self.memory = memory
        self._holder = holder
        self._place = MemoryPlace(self)
        self.held = self._waits = False

    def maybe_hold(self, size: int) -> None:
        """Hold so many bytes, unless others wait, or need all of them."""
        self.held = self.memory.maybe_hold(self._place, size)

    async def turn(self, size: int) -> None:
        """Wait until so many bytes may be held."""
        assert not self.held
        self._waits = True
        self.memory.ask_again(self._place, size)
        await self.memory.turn(self._place)
        self._waits = False
        self.held = self.memory.filled(self._place, size)
        assert self.held  # they were reserved

    def release(self) -> None:
        """The batch need not stay any more, or nobody waits for its turn."""
        if self.held or self._waits:
            self.held = self._waits = False
            self.memory.release(self._place)

    # --- as a holder of memory --------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._holder.group

    @property
    def position(self) -> int:
        """The next offset to offer."""
        return self._holder.position

    def demand(self, now: float) -> Demand:
        """Demand for records of the partition."""
        return self._holder.demand(now)

    def is_pinned(self, now: float) -> bool:
        """True while a request waits for the batch: it has its turn before those of the others."""
        return self._holder.demand(now) is Demand.WAITING

    def give_back(self) -> None:
        """Another batch stays instead."""
        self.held = False

    def memory_waits(self, error: Unavailable) -> None:
        """The batch cannot stay yet."""
        self._holder.memory_waits(error)
