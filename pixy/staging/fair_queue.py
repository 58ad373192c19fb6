"""A queue that its users share fairly: round robin over client addresses, then over sinks.

Pure. The first item is that of the address that was served longest ago, and of its sinks that of
the one served longest ago. An item stays first in its lane, and comes up again, until it is
removed: so the items of a lane are served one after another, in FIFO order, however many turns each
takes.

Invariant: no address without sinks, and no sink without items.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Lane(NamedTuple):
    """The items of a sink that clients of one address have queued; "" is the address of no
    client.
    """

    address: str
    sink_id: str


class FairQueue(Generic[T]):
    """Items by lane. Every method but iteration takes constant time."""

    __slots__ = ("_addresses",)

    def __init__(self) -> None:
        # Items by address and sink; addresses and sinks in the order of their turns.
        self._addresses: OrderedDict[str, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()

    def __iter__(self) -> Iterator[T]:
        """All items; those of a lane in their order."""
        for sinks in self._addresses.values():
            for items in sinks.values():
                yield from items

    def add(self, lane: Lane, item: T) -> None:
        """Add an item behind the others of its lane."""
        sinks = self._addresses.setdefault(lane.address, OrderedDict())
        sinks.setdefault(lane.sink_id, OrderedDict())[item] = None

    def first(self) -> T | None:
        """The item whose turn it is; None if there is none."""
        if not self._addresses:
            return None
        sinks = next(iter(self._addresses.values()))
        items = next(iter(sinks.values()))
        return next(iter(items))

    def served(self, lane: Lane) -> None:
        """End the turn of a lane: all others come first."""
        self._addresses.move_to_end(lane.address)
        self._addresses[lane.address].move_to_end(lane.sink_id)

    def remove(self, lane: Lane, item: T) -> None:
        """Remove an item."""
        sinks = self._addresses[lane.address]
        items = sinks[lane.sink_id]
        del items[item]
        if not items:
            del sinks[lane.sink_id]
        if not sinks:
            del self._addresses[lane.address]
