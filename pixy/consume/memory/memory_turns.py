"""A bound of memory that all consumer groups of a cluster share: which partition has memory next,
and which ones give theirs back for it.

Owns the places of partitions: the queue of those that wait, those that are being filled, and those
that are held, with their bytes. Pure: time comes in as `now`; of partitions it only reads their
position and demand.

    waiting -> filling -> held -> over
      ^          |         |
      |          v         v
      +------ too large   given back: the partition keeps its position, and asks again

- A size may be known only once the place is filled. Until then anything that is free is enough to
  begin; what turns out not to fit is dropped and waits at the front, with its size. So what is held
  never exceeds the bound, and no wait holds memory.
- One place may be held whatever its size, so a bound smaller than a batch stops nothing.
- Round robin over the groups with demand, FIFO within one, so a group with a thousand partitions is
  in front of another one once. Partitions without demand are passed, and only fill free memory.
  Demand is looked for among a few hundred of them at a time: a hundred thousand may wait.
- Who holds is watched by position: moving it costs nothing here. Memory is given back only for a
  partition with demand: of the places that are looked at, a hundred at a time, the one with the
  longest pause since its last record first, if that is `IDLE_S`, or if it has been held for
  `TURN_S`. So each wait ends after as many turns as there are others in front of it, and a turn is
  worth more than filling the place.
- A partition of a group whose requests find records in other partitions has demand too, after
  `PATIENCE_S`. Else the group would never come to it. It is in no hurry for as long again: requests
  that wait have their turns first.
- What has come without a turn is held if there is memory (`hold`), but for nobody in front of those
  that wait with demand.

The road not taken is a byte semaphore: it knows sizes beforehand, and takes nothing back.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from enum import Enum
from itertools import chain, islice
from typing import NamedTuple, Protocol

from pixy.errors import Unavailable

IDLE_S = 0.1
"""Time without a record from a place after which it is given back for one with demand."""
TURN_S = 1.0
"""Time after which a place is given back for one with demand although records are taken from it."""
PATIENCE_S = 5.0
"""Wait of a partition beside others of its group that have records."""
_LOOKED_AT = 500
"""Waiting partitions that are asked for their demand in one look."""
_GLANCED_AT = 20
"""The same at each turn, and of each group among those that had demand."""
_HELD_LOOKED_AT = 100
"""Places that are looked at in search of memory."""


class Demand(Enum):
    """Demand of clients for the records of one partition."""

    NONE = 0
    """No client asks, or the partition may not offer records."""
    SERVED = 1
    """Clients ask, and get records of other partitions."""
    WAITING = 2
    """A request waits, and no partition of its group has a record for it."""


class Need(Enum):
    """Need of a partition that waits for memory."""

    NONE = 0
    """It takes what is free."""
    PATIENT = 1
    """It takes from those without demand, and from those that have held for `PATIENCE_S`."""
    URGENT = 2
    """It takes from all that are not read at the moment, and has its turn before the others."""


class MemoryHolder(Protocol):
    """A partition of a consumer group, as the bound sees it."""

    @property
    def group(self) -> str:
        """The consumer group."""

    @property
    def position(self) -> int:
        """The next offset to offer."""

    def demand(self, now: float) -> Demand:
        """Demand for its records."""

    def is_pinned(self, now: float) -> bool:
        """True while it cannot give back."""

    def give_back(self) -> None:
        """Drop what it holds; the bytes are released already."""

    def memory_waits(self, error: Unavailable) -> None:
        """There is no memory for it yet."""


class MemoryPlace:
    """Memory of one partition: waiting, being filled, or held.

    Attributes:
        holder: the partition.
        size: the bytes it asks for, 0 if they are not known yet.
        told: the partition has heard that it waits.
    """

    __slots__ = ("asked_at", "held_since", "holder", "moved_at", "position", "size", "told")

    def __init__(self, holder: MemoryHolder) -> None:
        self.holder = holder
        self.size = 0
        self.told = False
        self.asked_at = self.held_since = self.moved_at = 0.0
        # The position at the last look.
        self.position = -1

    def watch(self, now: float) -> None:
        """Note whether records were taken since the last look."""
        position = self.holder.position
        if position != self.position:
            self.position, self.moved_at = position, now

    def may_go(self, now: float, urgent: bool) -> bool:
        """True if the memory may be taken back, for an urgent need or a patient one."""
        holder, idle, held_s = self.holder, now - self.moved_at >= IDLE_S, now - self.held_since
        if holder.is_pinned(now):
            return False
        if urgent:
            return idle or held_s >= TURN_S
        return held_s >= PATIENCE_S or (idle and holder.demand(now) is Demand.NONE)

    def need(self, now: float) -> Need:
        """The need of a place that waits."""
        demand, waited_s = self.holder.demand(now), now - self.asked_at
        if demand is Demand.WAITING:
            return Need.URGENT
        if demand is Demand.NONE or waited_s < PATIENCE_S:
            return Need.NONE
        return Need.PATIENT if waited_s < 2 * PATIENCE_S else Need.URGENT

    def in_demand(self, now: float) -> bool:
        """True if others give back for this one."""
        return self.need(now) is not Need.NONE


class Turn(NamedTuple):
    """A place to fill, or to hold, None if there is no memory for it yet; and those to give back
    first.
    """

    place: MemoryPlace | None
    given_back: list[MemoryPlace]


class MemoryTurns:
    """The places of all consumer groups of a cluster.

    Args:
        bytes_max: bytes that may be held.
        filling_max: places that may be filled at a time.
        filling_per_group_max: those of one group among them, if it has demand.

    Attributes:
        held_bytes: bytes that are held, or reserved for what is being filled and has a known size.
            Invariant: not above the limit, but for a single place.
        crowded: places wait with demand.
    """

    def __init__(self, bytes_max: int, filling_max: int = 1, filling_per_group_max: int = 1) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.crowded = False
        self._filling_max = filling_max
        self._filling_per_group_max = filling_per_group_max
        # Invariant: a place is in one of these four at most.
        # Places that wait: those that had demand at the last look, by group in the order of turns,
        # and the others. Invariant: no group is empty.
        self._wanted: OrderedDict[str, OrderedDict[MemoryPlace, None]] = OrderedDict()
        self._queue: OrderedDict[MemoryPlace, None] = OrderedDict()
        self._filling: dict[MemoryPlace, None] = {}
        # Of them, by group. Invariant: none is 0.
        self._filling_by_group: Counter[str] = Counter()
        # With their bytes, in the order in which they are looked at.
        self._held: OrderedDict[MemoryPlace, int] = OrderedDict()

    @property
    def waiting(self) -> list[MemoryPlace]:
        """The first place of each group with demand, and the first of the others."""
        wanted = [next(iter(places)) for places in islice(self._wanted.values(), _LOOKED_AT)]
        return [*wanted, *islice(self._queue, _LOOKED_AT)]

    @property
    def has_waiting(self) -> bool:
        """True while places wait."""
        return bool(self._wanted or self._queue)

    @property
    def filling(self) -> bool:
        """True while a place is being filled."""
        return bool(self._filling)

    def ask(self, place: MemoryPlace, size: int, now: float) -> None:
        """Queue a place; `size` is 0 if it is not known."""
        place.size, place.asked_at, place.told = size, now, False
        self._wait(place, place.in_demand(now))

    def _wait(self, place: MemoryPlace, wanted: bool, *, in_front: bool = False) -> None:
        group = place.holder.group
        queue = self._wanted.setdefault(group, OrderedDict()) if wanted else self._queue
        queue[place] = None
        self.crowded = self.crowded or wanted
        if in_front:
            queue.move_to_end(place, last=False)
            if wanted:
                self._wanted.move_to_end(group, last=False)

    def begin(self, now: float) -> Turn | None:
        """The next place to fill, None if there is none, or nothing to give back for it yet."""
        if len(self._filling) >= self._filling_max or not self.has_waiting:
            return None
        self.look(now, _GLANCED_AT)
        place = self._next_wanted(now)
        given_back: list[MemoryPlace] = []
        if place is not None:
            given_back = self._make_room(place, place.size, now)
        elif self._queue:
            place = next(iter(self._queue))
        if place is None or not self._fits(place.size):
            return Turn(None, given_back) if given_back else None
        self._leave_queue(place)
        group = place.holder.group
        if group in self._wanted:
            self._wanted.move_to_end(group)
        self._filling[place] = None
        self._filling_by_group[group] += 1
        self.held_bytes += place.size
        return Turn(place, given_back)

    def look(self, now: float, count: int = _LOOKED_AT) -> None:
        """Look for demand among so many of the places that had none."""
        for place in list(islice(self._queue, count)):
            if place.in_demand(now):
                del self._queue[place]
                self._wait(place, wanted=True)
            else:
                self._queue.move_to_end(place)

    def _next_wanted(self, now: float) -> MemoryPlace | None:
        """The first place with urgent need, else the first with some, None if none of those that
        are looked at has any.
        """
        passed: list[MemoryPlace] = []
        patient: MemoryPlace | None = None
        try:
            for place in islice(self._in_turn(), _LOOKED_AT):
                match place.need(now):
                    case Need.URGENT:
                        return place
                    case Need.PATIENT:
                        patient = patient or place
                    case _:
                        passed.append(place)
            return patient
        finally:
            for place in passed:
                self._leave_queue(place)
                self._wait(place, wanted=False)

    def _in_turn(self) -> Iterator[MemoryPlace]:
        """Places that had demand, of groups that may have another turn, a few of each group."""
        for group, places in self._wanted.items():
            if self._filling_by_group[group] < self._filling_per_group_max:
                yield from islice(places, _GLANCED_AT)

    def _leave_queue(self, place: MemoryPlace) -> None:
        self._queue.pop(place, None)
        group = self._wanted.get(place.holder.group)
        if group is not None:
            group.pop(place, None)
            if not group:
                del self._wanted[place.holder.group]
                self.crowded = bool(self._wanted)

    def filled(self, place: MemoryPlace, size: int, now: float) -> Turn:
        """The place takes so many bytes. Without memory for them it waits in front."""
        self._end_filling(place)
        place.size = size
        wanted = place.in_demand(now)
        given_back = self._make_room(place, size, now) if wanted else []
        if not self._fits(size):
            self._wait(place, wanted, in_front=True)
            return Turn(None, given_back)
        self._hold(place, size, now)
        return Turn(place, given_back)

    def _end_filling(self, place: MemoryPlace) -> None:
        group = place.holder.group
        del self._filling[place]
        self.held_bytes -= place.size
        self._filling_by_group[group] -= 1
        if not self._filling_by_group[group]:
            del self._filling_by_group[group]

    def maybe_hold(self, place: MemoryPlace, size: int, now: float) -> bool:
        """Have a place that does not wait hold so many bytes, which are there already: more than
        before. False if there is no memory, or if others wait with demand; then nothing has
        changed.
        """
        if self.crowded or not self._fits(size - self._held.get(place, 0)):
            return False
        self._hold(place, size, now)
        return True

    def hold(self, place: MemoryPlace, size: int, now: float) -> Turn:
        """The same for a place that holds nothing, and for which others may give back."""
        given_back: list[MemoryPlace] = []
        place.asked_at = now
        if not self.crowded and place not in self._held and place.in_demand(now):
            given_back = self._make_room(place, size, now)
        held = self.maybe_hold(place, size, now)
        return Turn(place if held else None, given_back)

    def _hold(self, place: MemoryPlace, size: int, now: float) -> None:
        before = self._held.get(place)
        if before is None:
            before = 0
            place.held_since = place.moved_at = now
            place.position = place.holder.position
        self._held[place] = size
        self.held_bytes += size - before

    def shrink(self, place: MemoryPlace, size: int) -> None:
        """A held place takes fewer bytes."""
        before = self._held[place]
        assert 0 < size <= before
        self._held[place] = size
        self.held_bytes -= before - size

    def release(self, place: MemoryPlace) -> None:
        """The memory is used up or no longer wanted, wherever the place is. No effect the second
        time.
        """
        if place in self._filling:
            self._end_filling(place)
        elif place in self._held:
            self.held_bytes -= self._held.pop(place)
        else:
            self._leave_queue(place)

    def _fits(self, size: int) -> bool:
        return not (self._held or self._filling) or self.held_bytes + max(size, 1) <= self.bytes_max

    def _make_room(self, place: MemoryPlace, size: int, now: float) -> list[MemoryPlace]:
        """Take back what others may give, until so many bytes are free for a place with demand;
        nothing if all of it is not enough.
        """
        if self._fits(size):
            return []
        urgent = place.need(now) is Need.URGENT
        looked_at = list(islice(self._held, _HELD_LOOKED_AT))
        for each in looked_at:
            each.watch(now)
        going = [each for each in looked_at if each.may_go(now, urgent)]
        going.sort(key=lambda each: each.moved_at)
        wanted = self.held_bytes + max(size, 1) - self.bytes_max
        given_back = []
        for each in going:
            given_back.append(each)
            wanted -= self._held[each]
            if wanted <= 0:
                break
        is_alone = len(given_back) == len(self._held) and not self._filling
        if wanted > 0 and not is_alone and len(looked_at) == len(self._held):
            return []
        for each in given_back:
            self.release(each)
        if len(looked_at) < len(self._held):
            for each in looked_at:
                if each in self._held:
                    self._held.move_to_end(each)
        return given_back

    def check_invariants(self) -> None:
        """Check the invariants of the fields."""
        assert self.held_bytes == sum(self._held.values()) + sum(each.size for each in self._filling)
        assert self.held_bytes <= self.bytes_max or len(self._held) + len(self._filling) == 1
        assert self._filling_by_group == Counter(each.holder.group for each in self._filling)
        assert all(self._wanted.values())
        assert self.crowded == bool(self._wanted)
        wanted = list(chain.from_iterable(self._wanted.values()))
        waiting = {*self._queue, *wanted}
        assert len(waiting) == len(self._queue) + len(wanted)
        assert not waiting & self._held.keys()
        assert not (waiting | self._held.keys()) & self._filling.keys()
