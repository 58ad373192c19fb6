"""Entries of one raft group, reconstructed from its records in the journal. Pure.

An entry is first written as an *original*, in the order in which the group's log grew. Its index is
the next one, or an existing one, which replaces that entry and all entries behind it, as the
entries of a new leader do. (The term of the new entry may even be lower: the terms of its log are
those of a majority.) Before the oldest file is removed, the entries in it that a slow group still
needs are *relocated*: copied to the end of the journal. Hence a copy comes late, behind originals
that are younger than the original of the copy.

Files are removed oldest first. Hence the remaining originals are the last ones written, without
holes between them, and each of them is younger than the original of any copy whose file is gone.
That determines the meaning of each record, in the order of the journal:

    row                     record                  existing entries        done
    ----------------------  ----------------------  ----------------------  ------------------------
    next original           original                an original one below,  accepted
                                                    or none yet
    original replaces       original                an original at its      replaces it and all
                                                    index                   behind it
    original over copies    original                copies at its index or  replaces them too
                                                    behind it
    original leaves a hole  original                the last original is    refused
                                                    more than one below
    copy in front           relocated               originals only above    accepted
                                                    it, or none
    copy of what is there   relocated               an original at its      ignored: if it differs,
                                                    index, of any term      the original replaced it
    copy behind             relocated               originals, all below    ignored: it was
                                                    it                      truncated, and a copy
                                                                            never restores an entry
    copied twice            relocated               a copy of the same      ignored
                                                    term
    two different copies    relocated               a copy of another term  refused
    applied                 either, up to the       any                     not needed
                            applied position
    hole in the end         no more records, and    a hole behind the       refused
                            the group's entries     applied position
                            are requested
    terms that go back      the same                an entry of a lower     refused
                                                    term than the one
                                                    before

The last two are decided only when the entries of a group are requested, because only the caller
knows its applied position: from a checkpoint, or not at all if the group was deleted. Copies of a
deleted group may remain that lead nowhere.

A crash between relocation and unlinking the file leaves originals and copies: `copy of what is
there`. A file may hold copies of its own entries: `copied twice`, in front of its originals.

The table relies on this: only entries that are in the group's log at that moment are relocated.
Then all remaining copies of one index have the same term. Truncated entries must not be copied once
nothing younger of the group remains in the journal.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from pixy.errors import CorruptData

__all__ = ["GroupEntries", "entries_after"]

T = TypeVar("T", bound=tuple[Any, ...])


class GroupEntries(Generic[T]):
    """Remaining entries of one raft group's log.

    An entry is a tuple with its term as first item; the other items are opaque.
    """

    __slots__ = ("_applied", "_first", "_next", "_originals", "_raft_group", "_relocated")

    def __init__(self, raft_group: int) -> None:
        self._raft_group = raft_group
        # Originals without holes; applied ones at the front are dropped.
        # Invariant: _first + len(_originals) == _next.
        self._originals: list[T] = []
        # Indexes of the first original in the list and of the next one; 0 before the first.
        self._first = 0
        self._next = 0
        # Copies by index. Invariant: all are below `_first` once there was an original.
        self._relocated: dict[int, T] = {}
        self._applied = 0

    def original(self, index: int, entry: T) -> None:
        """Add an original entry.

        Raises:
            CorruptData: it would leave a hole.
        """
        if index != self._next:
            self._replace_from(index)
        self._originals.append(entry)
        self._next = index + 1

    def _replace_from(self, index: int) -> None:
        if self._next and index > self._next:
            raise CorruptData(
                f"raft group {self._raft_group} has entry {index} where {self._next} was expected"
            )
        if self._next and index >= self._first:
            del self._originals[index - self._first :]
        else:
            self._first = index
            self._originals.clear()
        self._relocated = {at: entry for at, entry in self._relocated.items() if at < index}

    def relocated(self, index: int, entry: T) -> None:
        """Add a relocated entry, or ignore it.

        Raises:
            CorruptData: a copy of another term exists.
        """
        if index <= self._applied or (self._next and index >= self._first):
            return
        there = self._relocated.setdefault(index, entry)
        if there[0] != entry[0]:
            raise CorruptData(
                f"raft group {self._raft_group} has two relocated entries {index}, of terms {there[0]} and {entry[0]}"
            )

    def applied(self, index: int) -> None:
        """Drop the entries up to `index`, which are applied."""
        self._applied = index
        count = min(index + 1 - self._first, len(self._originals))
        if count > 0:
            del self._originals[:count]
            self._first += count
        if self._relocated:
            self._relocated = {at: entry for at, entry in self._relocated.items() if at > index}

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Index and entry of all entries behind the applied position, in order."""
        yield from sorted(self._relocated.items())
        for index, entry in enumerate(self._originals, self._first):
            if index > self._applied:
                yield index, entry


class LogEntry(Protocol):
    """An entry of a Raft log."""

    @property
    def index(self) -> int: ...

    @property
    def term(self) -> int: ...


E = TypeVar("E", bound=LogEntry)


def entries_after(raft_group: int, entries: Iterable[E], applied: int) -> list[E]:
    """The entries of a raft group behind `applied`, verified as the rest of its log.

    Args:
        entries: all entries of the group in the journal, in order.

    Raises:
        CorruptData: there is a hole, or a term is lower than the one before; the message names raft
            group and indexes.
    """
    after = [entry for entry in entries if entry.index > applied]
    if after and after[0].index != applied + 1:
        raise CorruptData(
            f"raft group {raft_group} is applied up to entry {applied}, "
            f"but the journal goes on with entry {after[0].index}"
        )
    for before, entry in pairwise(after):
        if entry.index != before.index + 1:
            raise CorruptData(
                f"raft group {raft_group} has entries {before.index} and {entry.index}, but not those in between"
            )
        if entry.term < before.term:
            raise CorruptData(
                f"raft group {raft_group}, entry {entry.index}: term {entry.term} after {before.term}"
            )
    return after
