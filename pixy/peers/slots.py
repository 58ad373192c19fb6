"""Places for connections in their handshake, as pure decisions: who goes when they are full.

The oldest connection that has sent nothing goes, never the newest one: a node sends at once, so
that connections that say nothing keep nobody out. One source address has at most half of the
places, and some are kept for the addresses of nodes.

    a new connection; found, in this order               the connection that goes is one of
    ---------------------------------------------------  ----------------------------------------
    more than half are of the address, which is no
    node's, or all places are taken                      that address
    those of strangers' addresses leave no place for
    nodes, and the new one is among them                 strangers' addresses
    all places are taken                                 strangers' addresses, or any if there are
                                                         none

A connection that has proven the shared secret does not go for a new one. But that is no node yet,
and may say nothing more. So those that have proven it have a part of the places: three eighths for
addresses of nodes, a quarter for the others. Of one too many, the oldest one goes of the address
that has the most: a node names itself within a round trip. So there are always places for new
connections.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Generic, TypeVar

T = TypeVar("T")


class SlotStage(IntEnum):
    """Progress of a handshake; the first one goes first."""

    SILENT = auto()
    HEARD = auto()
    PROVEN = auto()


@dataclass(slots=True)
class _Slot:
    host: str
    stage: SlotStage = SlotStage.SILENT


class HandshakeSlots(Generic[T]):
    """Connections in their handshake.

    Args:
        count: number of places.
        kept: places for addresses of nodes alone.
        is_node: True for the address of a node.
    """

    def __init__(self, count: int, kept: int = 0, is_node: Callable[[str], bool] = lambda _: False) -> None:
        self._count = count
        self._kept = kept
        self._is_node = is_node
        # The oldest connection first. Invariant: never more than `count`.
        self._slots: dict[T, _Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, connection: T) -> bool:
        return connection in self._slots

    def add(self, connection: T, host: str) -> T | None:
        """Take a new connection from an address; returns the one that goes for it, which may be
        itself.
        """
        self._slots[connection] = _Slot(host)
        crowd = self._crowd(host)
        if crowd is None:
            return None
        gone = self._first(crowd, connection)
        del self._slots[gone]
        return gone

    def reached(self, connection: T, stage: SlotStage) -> T | None:
        """A connection has got so far; returns the one that goes for it, which may be itself.

        Nothing if it has gone.
        """
        slot = self._slots.get(connection)
        if slot is None or slot.stage >= stage:
            return None
        slot.stage = stage
        gone = self._superfluous(self._is_node(slot.host)) if stage is SlotStage.PROVEN else None
        if gone is not None:
            del self._slots[gone]
        return gone

    def _superfluous(self, is_node: bool) -> T | None:
        """The connection that goes of those that have proven the secret, of addresses of nodes or
        others; None if none has to.
        """
        proven: dict[str, list[T]] = {}
        for each, slot in self._slots.items():
            if slot.stage is SlotStage.PROVEN:
                proven.setdefault(slot.host, []).append(each)
        some = [each for host, each in proven.items() if self._is_node(host) == is_node]
        share = self._count * 3 // 8 if is_node else self._count // 4
        if sum(map(len, some)) <= max(1, share):
            return None
        return max(some, key=len)[0]

    def remove(self, connection: T) -> None:
        """A handshake is over."""
        self._slots.pop(connection, None)

    def _crowd(self, host: str) -> "list[T] | None":
        """Connections of which one has to go, None if none has to."""
        slots, is_full = self._slots, len(self._slots) > self._count
        if len(slots) <= min(self._count // 2, self._count - self._kept):
            return None
        same = [each for each, slot in slots.items() if slot.host == host]
        is_node = self._is_node(host)
        if len(same) > self._count // 2 and (is_full or not is_node):
            return same
        nodes = {each for each in {slot.host for slot in slots.values()} if self._is_node(each)}
        strangers = [each for each, slot in slots.items() if slot.host not in nodes]
        if not is_node and len(strangers) > self._count - self._kept:
            return strangers
        if not is_full:
            return None
        return [each for each in strangers if slots[each].stage < SlotStage.PROVEN] or list(slots)

    def _first(self, crowd: Iterable[T], new: T) -> T:
        """The oldest connection of the first stage; the new one if all others have proven the
        secret.
        """
        others = [each for each in crowd if each != new and self._slots[each].stage < SlotStage.PROVEN]
        return min(others, key=lambda each: self._slots[each].stage, default=new)
