"""The entries of one raft group, put together from the records that the journal has of it. Pure.

An entry gets into the journal as an *original*, in the order in which the group's log grew: the next index, or an index that is
there already, which replaces that entry and everything behind it, as a new leader's entries do. (The new entry's term may even be
the lower one: terms that come with it are what a majority has.) When the oldest file goes while a slow group still needs entries in
it, these are *relocated*: copied to the journal's end. So a copy comes late, behind originals that are younger than what it is a
copy of.

Files go oldest first. Hence the originals that are left are the last ones that were written, without holes between them, and each of
them is younger than the original of any copy whose file is gone. From that follows what each record means, in the journal's order:

    row                        record                               what is there                         done
    -------------------------  -----------------------------------  ------------------------------------  ------------------
    next original              original                             an original one below, or none yet    taken
    original replaces          original                             an original at its index              replaces it and
                                                                                                          what is behind it
    original over copies       original                             copies at its index or behind it      replaces them too
    original leaves a hole     original                             the last original is more than        refused
                                                                    one below
    copy in front              relocated                            originals only above it, or none      taken
    copy of what is there      relocated                            an original at its index, of any      left out: if it
                                                                    term                                  differs, it was
                                                                                                          replaced meanwhile
    copy behind                relocated                            originals, all below it               left out: it was
                                                                                                          truncated, a copy
                                                                                                          never brings it back
    copied twice               relocated                            a copy of the same term               left out
    two different copies       relocated                            a copy of another term                refused
    applied                    either, up to the applied position   anything                              not needed
    hole in the end            none any more, and the group's       a hole behind what is applied         refused
                               entries are asked for
    terms that go back         the same                             an entry of a lower term than the     refused
                                                                    one before it

The last two are judged only when somebody asks for a group's entries, because only he knows how far it is applied: a checkpoint says
that, or nobody, if the group is deleted. Of those, copies may be left that lead nowhere.

A crash between relocation and the unlinking of the file leaves originals and copies: `copy of what is there`. The entries of a file
may have been copied into it: `copied twice`, and in front of its originals.

What the table relies on: who relocates copies only what is in the group's log at that moment. Then all copies of one index that are
left have one term. Entries that were truncated must not be copied once nothing younger of the group is left to tell.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from pixy.errors import CorruptData

__all__ = ["GroupEntries", "entries_after"]

T = TypeVar("T", bound=tuple[Any, ...])


class GroupEntries(Generic[T]):
    """What is left of one raft group's log.

    An entry is a tuple whose first item is its term; what else it has is its owner's business.
    """

    __slots__ = ("_applied", "_first", "_next", "_originals", "_raft_group", "_relocated")

    def __init__(self, raft_group: int) -> None:
        self._raft_group = raft_group
        # Originals without holes; applied ones at the front are dropped. Invariant: _first + len(_originals) == _next.
        self._originals: list[T] = []
        # Index of the first original that is kept, and of the next one to come; 0 before the first.
        self._first = 0
        self._next = 0
        # Copies by index. Invariant: all are below `_first`, unless there was no original yet.
        self._relocated: dict[int, T] = {}
        self._applied = 0

    def original(self, index: int, entry: T) -> None:
        """Take an entry as the group's log got it.

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
        """Take a copy of an entry, or leave it out.

        Raises:
            CorruptData: there is a copy of another term.
        """
        if index <= self._applied or (self._next and index >= self._first):
            return
        there = self._relocated.setdefault(index, entry)
        if there[0] != entry[0]:
            raise CorruptData(
                f"raft group {self._raft_group} has two relocated entries {index}, of terms {there[0]} and {entry[0]}"
            )

    def applied(self, index: int) -> None:
        """Entries up to `index` are not needed."""
        self._applied = index
        count = min(index + 1 - self._first, len(self._originals))
        if count > 0:
            del self._originals[:count]
            self._first += count
        if self._relocated:
            self._relocated = {at: entry for at, entry in self._relocated.items() if at > index}

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Index and entry of all that is needed and there, in order."""
        yield from sorted(self._relocated.items())
        for index, entry in enumerate(self._originals, self._first):
            if index > self._applied:
                yield index, entry


class Entry(Protocol):
    """What has a place in a Raft log."""

    @property
    def index(self) -> int: ...

    @property
    def term(self) -> int: ...


E = TypeVar("E", bound=Entry)


def entries_after(raft_group: int, entries: Iterable[E], applied: int) -> list[E]:
    """Of a raft group's entries, in order, those behind `applied`; proves that they can be the rest of its log.

    Raises:
        CorruptData: there is a hole, or terms go back; names raft group and indexes.
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
