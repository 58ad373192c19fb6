"""The memory of the fetched batches of one partition of a consumer group, within the common bound.

A fetch that waits for records holds nothing. What it finds is counted when it has come; if there is
no memory for it, it is dropped, and the partition waits for a turn. While others wait with demand,
a partition has little fetched at a time, and only once it has used up what it had. So what
partitions hold comes to its end, and the others have their turns.

What others need is given back: the position stays, and it is fetched again from there. A partition
whose batch is being decompressed keeps it; one that waits for that keeps it while it has a pin
(`pins`), which is for a part of the memory, and clients want its records. Without one it waits for
it first, and then fetches again.

A fetch is counted as a whole until its last batch is used up, since its batches may be views of one
buffer.
"""

from collections.abc import Callable, Sequence

from pixy.backend import Batch
from pixy.consume.core import Timers
from pixy.consume.memory import BoundedMemory, Demand, MemoryPlace, Pin, Pins
from pixy.consume.partition.partition_offers import LITTLE_BYTES, PartitionOffers
from pixy.errors import Unavailable

_ENTRY_BYTES = 400
"""Objects of a batch that waits."""
_COPIES = 2
"""Of the batch that is decoded: a window of it, and its next record."""
_AHEAD_FACTOR = 64
_AHEAD_BYTES = 32 << 10
"""Objects that a small batch becomes: headers, or what is decompressed on the event loop."""
_FETCHES_MAX = 1000
_FETCHES_PER_GROUP_MAX = 8
"""Fetches with a turn that may be in progress: what they find is in demand, so others give back for
each.
"""
COUNTED_AT_ONCE = 200
"""Batches that are counted when they come. More are taken for as many bytes as were asked for."""


def memory_of(batches: Sequence[Batch]) -> int:
    """Memory of fetched batches, at least one."""
    if len(batches) == 1:
        size = len(batches[0])
        return _memory(size, size, 1)
    sizes = [*map(len, batches)]
    return _memory(sum(sizes), max(sizes), len(sizes))


def _memory(size: int, largest: int, count: int) -> int:
    ahead = _AHEAD_FACTOR * largest
    return size + count * _ENTRY_BYTES + _COPIES * largest + (ahead if ahead < _AHEAD_BYTES else _AHEAD_BYTES)


_LITTLE = _memory(LITTLE_BYTES, LITTLE_BYTES // 4, 10)
"""A small fetch of ordinary batches."""


def bounded_fetches(bytes_max: int, timers: Timers) -> BoundedMemory:
    """The memory of fetched batches of all consumer groups of a cluster."""
    return BoundedMemory(
        "fetched batches",
        "consumer.max_fetched_bytes",
        bytes_max,
        timers,
        filling_max=_FETCHES_MAX,
        filling_per_group_max=_FETCHES_PER_GROUP_MAX,
    )


class FetchedMemory:
    """Memory of one partition.

    Args:
        memory: of all partitions.
        pins: of all partitions.
        group: the consumer group.
        offers: the offers, which have what was fed to them.
        demand: the demand for records of the partition.
        drop_offers: drops what the offers have not offered.
        memory_waits: called with an error for requests, when there is no memory.

    Attributes:
        counted: bytes that the place holds, 0 while it waits.
        unpacks: the batch is being decompressed.
    """

    __slots__ = (
        "_arriving",
        "_demand",
        "_drop_offers",
        "_memory",
        "_needed",
        "_offers",
        "_pin",
        "_pin_needed",
        "_pins",
        "_place",
        "_turns",
        "_waits",
        "counted",
        "group",
        "memory_waits",
        "unpacks",
    )

    def __init__(
        self,
        memory: BoundedMemory,
        pins: Pins,
        group: str,
        offers: PartitionOffers,
        demand: Callable[[float], Demand],
        drop_offers: Callable[[], None],
        memory_waits: Callable[[Unavailable], None],
    ) -> None:
        self._memory = memory
        self._turns = memory.turns
        self._pins = pins
        self.group = group
        self._offers = offers
        self._demand = demand
        self._drop_offers = drop_offers
        self.memory_waits = memory_waits
        self._place = MemoryPlace(self)
        self.counted = 0
        # Bytes that have come, and that the offers do not count yet.
        self._arriving = 0
        # Bytes to wait for before the next fetch, 0: none.
        self._needed = 0
        # The place waits for its turn, or has it and is not filled.
        self._waits = False
        self.unpacks = False
        # The last pin, and its bytes to wait for before the next fetch, 0: none.
        self._pin: Pin | None = None
        self._pin_needed = 0

    # --- fetching ---------------------------------------------------------------------------------

    @property
    def may_fetch(self) -> bool:
        """True unless others wait, or did so, and there is something left."""
        return not self.counted or not (self._needed or self._turns.crowded)

    @property
    def needs_turn(self) -> bool:
        """True if the next fetch has to wait for its turn."""
        if self._needed:
            return True
        return self._turns.crowded and self._offers.fetch_offset < self._offers.end

    async def turn(self) -> None:
        """Wait for the turn to fetch. `admit` is to follow."""
        if self._pin is not None and self._pin_needed:
            size, self._pin_needed = self._pin_needed, 0
            await self._pin.turn(size)
        self._offers.fetch_little()
        if not self._waits:
            self._waits = True
            self._memory.ask_again(self._place, self._needed or _LITTLE)
        self._needed = 0
        await self._memory.turn(self._place)

    def admit(self, batches: Sequence[Batch], bytes_max: int) -> int | None:
        """Count batches that have come, at least one.

        Args:
            batches: the batches.
            bytes_max: their bytes, if there are several.

        Returns:
            Their memory, at most; None if there is none, and they are to be dropped.
        """
        count = len(batches)
        size = _memory(bytes_max, bytes_max, count) if count > COUNTED_AT_ONCE else memory_of(batches)
        total = self._offers.fetched_bytes + size
        hold = self._memory.filled if self._waits else self._memory.maybe_hold
        if hold(self._place, total):
            self._waits = False
            self.counted, self._arriving = total, size
            return size
        self._needed = min(size, max(memory_of(batches[:1]), _LITTLE))
        return None

    def end(self) -> None:
        """No fetch is in progress: the offers have all of it, or never will."""
        self._arriving = 0
        if self._waits:
            self._waits = False
            self._memory.release(self._place)
        if self._offers.packed is None:
            self.unpin()
        self.settle()

    def settle(self) -> None:
        """Release what the offers have used up."""
        size = self._offers.fetched_bytes + self._arriving
        if size < self.counted:
            self.counted = size
            if size:
                self._memory.shrink(self._place, size)
            else:
                self._memory.release(self._place)

    # --- decompression ----------------------------------------------------------------------------

    def pin(self, *, small: bool) -> None:
        """The next batch waits for its decompression: keep what was fetched, if it may stay.

        Args:
            small: it takes turns with small batches.
        """
        self._pin_needed = 0
        pin, memory = self._pin, self._pins.small if small else self._pins.large
        if pin is None or pin.memory is not memory:
            if pin is not None:
                if small and pin.held:
                    return  # it seemed small before, too
                pin.release()
            pin = self._pin = Pin(memory, self)
        if not pin.held:
            pin.maybe_hold(max(1, self.counted))

    def unpin(self) -> None:
        """Nothing waits for its decompression any more."""
        if self._pin is not None:
            self._pin.release()

    # --- giving back ------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The next offset to offer."""
        return self._offers.position

    def demand(self, now: float) -> Demand:
        """Demand for records of the partition."""
        return self._demand(now)

    def is_pinned(self, now: float) -> bool:
        """True while the offers do not have all of it, while it is being decompressed, or if it may
        stay until then and clients want it.
        """
        if self._arriving or self.unpacks:
            return True
        return self._pin is not None and self._pin.held and self._demand(now) is not Demand.NONE

    def give_back(self) -> None:
        """Others need the memory: fetch again when it is this partition's turn."""
        self.counted = 0
        self._needed = _LITTLE
        self.unpin()
        packed = self._offers.packed
        if packed is not None:
            self._needed = self._pin_needed = max(_LITTLE, memory_of((packed,)))
        self._drop_offers()
