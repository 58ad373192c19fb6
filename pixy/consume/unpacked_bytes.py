"""The common bound of decompressed batches: which partition decompresses next, and which ones give
their batches back for it.

Owns, for all consumer groups of a cluster, the queue of batches that wait, the one that is being
decompressed, and those that partitions hold, with their bytes. Pure: time comes in as `now`; of
partitions it only reads their position and demand.

    queue -> unpacking -> held -> over
      ^          |          |
      |          v          v
      +------ too large   given back: the partition keeps its position and the compressed batch,
                          and asks again

- The size of a batch is known once it was decompressed. Until then anything that is free is enough
  to begin; a batch that turns out not to fit is dropped and waits at the front, with its size. So
  what is held never exceeds the bound, and no wait holds memory.
- One batch may be held whatever its size, so a bound smaller than a batch stops nothing.
- Round robin over the groups with demand, FIFO within one, so a group with a thousand partitions is
  in front of another one once. Partitions without demand are passed, and only fill free memory.
  Demand is looked for among a few hundred of them at a time: a hundred thousand may wait.
- Who holds is watched by position: moving it costs nothing here. A batch is given back only for one
  with demand: the one with the longest pause since its last record first, if that is `IDLE_S`, or
  if it has been held for `TURN_S`. So each wait ends after as many turns as there are others in
  front of it, and a turn is worth more than its decompression.
- A partition of a group whose requests find records in other partitions has demand too, after
  `PATIENCE_S`. Else the group would never come to it.

The road not taken is a byte semaphore: it knows sizes beforehand, and takes nothing back.
"""

from collections import OrderedDict
from enum import Enum
from itertools import chain, islice
from typing import NamedTuple, Protocol

__all__ = [
    "IDLE_S",
    "PATIENCE_S",
    "TURN_S",
    "Demand",
    "Turn",
    "UnpackedBatch",
    "UnpackedBytes",
    "UnpackedHolder",
]

IDLE_S = 0.1
"""Time without a record from a batch after which it is given back for one with demand."""
TURN_S = 1.0
"""Time after which a batch is given back for one with demand although records are taken from it."""
PATIENCE_S = 5.0
"""Wait of a partition beside others of its group that have records."""
_LOOKED_AT = 500
"""Waiting partitions that are asked for their demand in one look."""


class Demand(Enum):
    """Demand of clients for the records of one partition."""

    NONE = 0
    """No client asks, or the partition may not offer records."""
    SERVED = 1
    """Clients ask, and get records of other partitions."""
    WAITING = 2
    """A request waits, and no partition of its group has a record for it."""


class UnpackedHolder(Protocol):
    """A partition of a consumer group, as the bound sees it."""

    @property
    def group(self) -> str:
        """The consumer group."""

    @property
    def position(self) -> int:
        """The next offset to decode."""

    def demand(self, now: float) -> Demand:
        """Demand for its records."""


class UnpackedBatch:
    """A batch of one partition: waiting, being decompressed, or held.

    Attributes:
        holder: the partition.
        size: its decompressed bytes, 0 if they are not known yet.
        told: the partition has heard that it waits for memory.
    """

    __slots__ = ("asked_at", "held_since", "holder", "moved_at", "position", "size", "told")

    def __init__(self, holder: UnpackedHolder, size: int, now: float) -> None:
        self.holder = holder
        self.size = size
        self.told = False
        self.asked_at = self.held_since = self.moved_at = now
        # The position at the last look.
        self.position = -1

    def watch(self, now: float) -> None:
        """Note whether records were taken since the last look."""
        position = self.holder.position
        if position != self.position:
            self.position, self.moved_at = position, now

    def is_idle(self, now: float) -> bool:
        """True if the batch may be given back."""
        return now - self.moved_at >= IDLE_S or now - self.held_since >= TURN_S

    def in_demand(self, now: float) -> bool:
        """True if others give back for this one."""
        demand = self.holder.demand(now)
        return demand is Demand.WAITING or (demand is Demand.SERVED and now - self.asked_at >= PATIENCE_S)


class Turn(NamedTuple):
    """A batch to decompress, or to hold, and those to give back first."""

    batch: UnpackedBatch
    given_back: list[UnpackedBatch]


class UnpackedBytes:
    """The decompressed batches of all consumer groups of a cluster.

    Args:
        bytes_max: bytes of them that may be held.

    Attributes:
        held_bytes: their bytes. Invariant: not above the limit, but for a single batch.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        # Invariant: a batch is in one of these four places at most.
        # Batches that wait: those that had demand at the last look, by group in the order of turns,
        # and the others. Invariant: no group is empty.
        self._wanted: OrderedDict[str, OrderedDict[UnpackedBatch, None]] = OrderedDict()
        self._queue: OrderedDict[UnpackedBatch, None] = OrderedDict()
        self._unpacking: UnpackedBatch | None = None
        self._held: dict[UnpackedBatch, None] = {}

    @property
    def waiting(self) -> list[UnpackedBatch]:
        """The first batch of each group with demand, and the first of the others."""
        wanted = [next(iter(batches)) for batches in islice(self._wanted.values(), _LOOKED_AT)]
        return [*wanted, *islice(self._queue, _LOOKED_AT)]

    @property
    def unpacking(self) -> bool:
        """True while a batch is being decompressed."""
        return self._unpacking is not None

    def ask(self, holder: UnpackedHolder, size: int, now: float) -> UnpackedBatch:
        """Queue a batch; its size is 0 if it has never been decompressed."""
        batch = UnpackedBatch(holder, size, now)
        self._wait(batch, batch.in_demand(now))
        return batch

    def _wait(self, batch: UnpackedBatch, wanted: bool) -> None:
        queue = self._wanted.setdefault(batch.holder.group, OrderedDict()) if wanted else self._queue
        queue[batch] = None

    def _wait_in_front(self, batch: UnpackedBatch, wanted: bool) -> None:
        self._wait(batch, wanted)
        if wanted:
            group = batch.holder.group
            self._wanted.move_to_end(group, last=False)
            self._wanted[group].move_to_end(batch, last=False)
        else:
            self._queue.move_to_end(batch, last=False)

    def begin(self, now: float) -> Turn | None:
        """The next batch to decompress, None if there is none, or no memory for it yet."""
        if self._unpacking is not None or not (self._queue or self._wanted):
            return None
        for held in self._held:
            held.watch(now)
        batch = self._next_wanted(now)
        given_back: list[UnpackedBatch] | None
        if batch is not None:
            given_back = self._make_room(batch.size, now)
        else:
            batch = self.waiting[0]
            given_back = [] if self._fits(batch.size) else None
        if given_back is None:
            return None
        self._leave_queue(batch)
        if batch.holder.group in self._wanted:
            self._wanted.move_to_end(batch.holder.group)
        self._unpacking = batch
        return Turn(batch, given_back)

    def _next_wanted(self, now: float) -> UnpackedBatch | None:
        """The first batch with demand, None if none of those that are looked at has some."""
        for batch in list(islice(self._queue, _LOOKED_AT)):
            if batch.in_demand(now):
                del self._queue[batch]
                self._wait(batch, wanted=True)
            else:
                self._queue.move_to_end(batch)
        for batch in list(islice(chain.from_iterable(self._wanted.values()), _LOOKED_AT)):
            if batch.in_demand(now):
                return batch
            self._leave_queue(batch)
            self._wait(batch, wanted=False)
        return None

    def _leave_queue(self, batch: UnpackedBatch) -> None:
        self._queue.pop(batch, None)
        group = self._wanted.get(batch.holder.group)
        if group is not None:
            group.pop(batch, None)
            if not group:
                del self._wanted[batch.holder.group]

    def unpacked(self, batch: UnpackedBatch, size: int, now: float) -> Turn | None:
        """The batch was decompressed to so many bytes.

        Returns:
            The batches to give back for it; None if there is no memory: then it waits in front.
        """
        assert self._unpacking is batch
        self._unpacking = None
        batch.size = size
        given_back: list[UnpackedBatch] | None = []
        if not self._fits(size):
            given_back = self._make_room(size, now) if batch.in_demand(now) else None
        if given_back is None:
            self._wait_in_front(batch, batch.in_demand(now))
            return None
        self._held[batch] = None
        self.held_bytes += size
        batch.held_since = batch.moved_at = now
        batch.position = batch.holder.position
        return Turn(batch, given_back)

    def release(self, batch: UnpackedBatch) -> None:
        """The batch is used up or no longer wanted, wherever it is. No effect the second time."""
        if self._unpacking is batch:
            self._unpacking = None
        elif batch in self._held:
            del self._held[batch]
            self.held_bytes -= batch.size
        else:
            self._leave_queue(batch)

    def _fits(self, size: int) -> bool:
        return not self._held or self.held_bytes + max(size, 1) <= self.bytes_max

    def _make_room(self, size: int, now: float) -> list[UnpackedBatch] | None:
        """Take back what is idle until so many bytes are free; None if that is not enough."""
        left, count = self.held_bytes, len(self._held)
        given_back: list[UnpackedBatch] = []
        idle = sorted((each for each in self._held if each.is_idle(now)), key=lambda each: each.moved_at)
        while count and left + max(size, 1) > self.bytes_max:
            if not idle:
                return None
            given_back.append(idle.pop(0))
            left, count = left - given_back[-1].size, count - 1
        for each in given_back:
            self.release(each)
        return given_back

    def check_invariants(self) -> None:
        """Check the invariants of the fields."""
        assert self.held_bytes == sum(each.size for each in self._held)
        assert self.held_bytes <= self.bytes_max or len(self._held) == 1
        assert all(self._wanted.values())
        wanted = list(chain.from_iterable(self._wanted.values()))
        waiting = {*self._queue, *wanted}
        assert len(waiting) == len(self._queue) + len(wanted)
        assert not waiting & self._held.keys()
        assert self._unpacking not in waiting
        assert self._unpacking not in self._held
