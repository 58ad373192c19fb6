"""Entries of one raft group, reconstructed from its records in the journal. Pure.

An entry is first written as an *original*, in the order in which the group's log grew. Its index is
the next one, or an existing one, which replaces that entry and all entries behind it, as the
entries of a new leader do. (The term of the new entry may even be lower: the terms of its log are
those of a majority.) Before the oldest file is removed, the entries in it that a slow group still
needs are *relocated*: copied to the end of the journal. Hence a copy comes late, behind originals
that are younger than the original of the copy.

A *reset* at an index replaces the whole log by a snapshot of the state up to there: it voids all
records before it, and the next original has the next index. Before the file with the newest reset
is removed, that one is *carried over*: copied to the end of the journal. A carried-over reset says
where the log began, and voids nothing.

Files are removed oldest first. Hence the remaining originals are the last ones written, without
holes between them, and each of them is younger than the original of any copy whose file is gone.
Behind a reset that remains, all originals remain that were written since, so no copy is needed.
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
    reset                   reset                   any, at any index       voids all; the log
                                                                            begins behind the reset
    original behind a       original                a reset one below,      accepted
    reset                                           nothing behind it
    hole behind a reset     original                a reset more than one   refused
                                                    below, nothing behind
                                                    it
    original below a reset  original                a reset, carried over   refused: what a reset
                                                    or not, at its index    includes is committed
                                                    or above
    copy behind a reset     relocated               a reset earlier in the  ignored: the originals
                                                    journal, at any index   since the reset are
                                                                            there
    two resets              reset                   a lower one, or the     the later one counts
                                                    same
    reset goes back         reset                   a higher one, carried   refused
                                                    over or not
    carried-over reset      carried-over reset      none, or all above it;  accepted: the log began
                                                    the same reset, or      behind it
                                                    none
    carried-over reset in   original                a carried-over reset    accepted: those between
    front                                           below it, no originals  were applied, and their
                                                                            files are gone
    carried over behind     carried-over reset      originals at its index  refused
    originals                                       or below
    copy below a            relocated               a carried-over reset    ignored, in either order
    carried-over reset                              at its index or above
    older reset carried     carried-over reset      a higher reset          ignored: the newer one
    over                                                                    was being written
    newer reset carried     carried-over reset      a lower carried-over    the later one counts
    over                                            reset
    reset is missing        carried-over reset      a lower reset           refused: its original
                                                                            was written behind that
    two different resets    any reset               one of its index, of    refused
                                                    another term
    applied                 either, up to the       any                     not needed
                            applied position
    hole in the end         no more records, and    a hole behind the       refused
                            the group's entries     applied position
                            are requested
    terms that go back      the same                an entry of a lower     refused
                                                    term than the one
                                                    before, or the reset
    reset without its       the same                a reset above the       refused: the state that
    state                                           applied position        it stands for is not
                                                                            there

The last three are decided only when the entries of a group are requested, because only the caller
knows its applied position: from a checkpoint, or not at all if the group was deleted. Copies of a
deleted group may remain that lead nowhere.

A crash between relocation and unlinking the file leaves originals and copies: `copy of what is
there`. A file may hold copies of its own entries: `copied twice`, in front of its originals.

The table relies on this: only entries that are in the group's log at that moment are relocated.
Then all remaining copies of one index have the same term. Truncated entries must not be copied once
nothing younger of the group remains in the journal.

Applied entries are not needed, but they are still in the journal, for followers that lag. Of them
only the terms are kept, as runs.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pixy.entry_ids import LogPosition
from pixy.errors import CorruptData
from pixy.storage.journal.term_runs import TermRun, TermRuns, joined

T = TypeVar("T", bound=tuple[Any, ...])


class AvailableLog(NamedTuple):
    """The end of a raft group's log as far as the journal has it, applied entries included.

    Attributes:
        first, last: indexes of its entries, without holes; 0 if there are none.
        terms: runs of their terms.
    """

    first: int
    last: int
    terms: list[TermRun]


class GroupEntries(Generic[T]):
    """Remaining entries of one raft group's log.

    An entry is a tuple with its term as first item; the other items are opaque.

    Attributes:
        reset: position of the newest reset, None if there is none.
    """

    __slots__ = (
        "_applied",
        "_copies",
        "_first",
        "_next",
        "_originals",
        "_raft_group",
        "_relocated",
        "_runs",
        "_term",
        "_was_reset",
        "reset",
    )

    def __init__(self, raft_group: int) -> None:
        self._raft_group = raft_group
        # Originals without holes; applied ones at the front are dropped.
        # Invariant: _first + len(_originals) == _next.
        self._originals: list[T] = []
        # Indexes of the first original in the list and of the next one; 0 before the first.
        self._first = 0
        self._next = 0
        # Terms of all originals, applied ones included, and that of the last one, -1 without one.
        # Invariant: the last run goes on to _next.
        self._runs: list[TermRun] = []
        self._term = -1
        # Copies by index. Invariant: all are below the first original once there was one.
        self._relocated: dict[int, T] = {}
        # Terms of all copies, applied and replaced ones included; those from the first original on
        # mean nothing.
        self._copies = TermRuns()
        self._applied = 0
        # Invariant: nothing that exists is at or below it.
        self.reset: LogPosition | None = None
        # There was a reset, not only a carried-over one. Invariant: then all originals since are
        # there.
        self._was_reset = False

    def original(self, index: int, entry: T) -> None:
        """Add an original entry.

        Raises:
            CorruptData: it would leave a hole, or a reset includes it.
        """
        if index != self._next or entry[0] != self._term:
            self._begin_run(index, entry[0])
        self._originals.append(entry)
        self._next = index + 1

    def _begin_run(self, index: int, term: int) -> None:
        if index != self._next:
            self._replace_from(index)
        if not self._runs or self._runs[-1][1] != term:
            self._runs.append((index, term))
        self._term = term

    def _replace_from(self, index: int) -> None:
        if self.reset is not None and index <= self.reset.index:
            raise CorruptData(
                f"raft group {self._raft_group} has entry {index}, "
                f"but its log begins behind entry {self.reset.index}"
            )
        if self._next and index > self._next:
            raise CorruptData(
                f"raft group {self._raft_group} has entry {index} where {self._next} was expected"
            )
        if self._next and index >= self._first:
            del self._originals[index - self._first :]
        else:
            self._first = index
            self._originals.clear()
        while self._runs and self._runs[-1][0] >= index:
            self._runs.pop()
        self._relocated = {at: entry for at, entry in self._relocated.items() if at < index}

    def relocated(self, index: int, entry: T) -> None:
        """Add a relocated entry, or ignore it.

        Raises:
            CorruptData: a copy of another term exists.
        """
        if self._was_reset or (self.reset is not None and index <= self.reset.index):
            return
        if self._runs and index >= self._runs[0][0]:
            return
        self._copies.add(index, entry[0])
        if index <= self._applied:
            return
        there = self._relocated.setdefault(index, entry)
        if there[0] != entry[0]:
            raise CorruptData(
                f"raft group {self._raft_group} has two relocated entries {index}, of terms {there[0]} and {entry[0]}"
            )

    def reset_to(self, position: LogPosition) -> None:
        """Add a reset: the log begins behind a position.

        Raises:
            CorruptData: there was a later one, or one of another term.
        """
        if self.reset is not None:
            self._check_term(self.reset, position)
            if position.index < self.reset.index:
                raise CorruptData(
                    f"raft group {self._raft_group} has a reset at entry {position.index} "
                    f"behind one at entry {self.reset.index}"
                )
        self.reset, self._was_reset = position, True
        self._originals.clear()
        self._relocated.clear()
        self._runs.clear()
        self._copies = TermRuns()
        self._first = self._next = position.index + 1
        self._term = -1

    def carried_over(self, position: LogPosition) -> bool:
        """Add a carried-over reset; False if it is ignored, because there is a later one.

        Raises:
            CorruptData: it contradicts the records before it.
        """
        if self.reset is not None:
            self._check_term(self.reset, position)
            if position.index < self.reset.index:
                return False
            if self._was_reset and position.index > self.reset.index:
                raise CorruptData(
                    f"raft group {self._raft_group} has a carried-over reset at entry {position.index}, but the "
                    f"reset itself is missing behind the one at entry {self.reset.index}"
                )
        if self._runs and self._runs[0][0] <= position.index:
            raise CorruptData(
                f"raft group {self._raft_group} has entry {self._runs[0][0]}, but its log begins behind entry {position.index}"
            )
        self.reset = position
        self._relocated = {at: entry for at, entry in self._relocated.items() if at > position.index}
        self._copies.drop(position.index)
        return True

    def _check_term(self, reset: LogPosition, other: LogPosition) -> None:
        if other.index == reset.index and other.term != reset.term:
            raise CorruptData(
                f"raft group {self._raft_group} has two resets at entry {reset.index}, of terms {reset.term} and {other.term}"
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

    def available(self) -> AvailableLog:
        """The end of the log as far as the journal has it."""
        if self._runs:
            last = self._next - 1
            terms = joined(self._copies.ending_with(self._runs[0][0] - 1), self._runs)
        else:
            last = self._copies.last
            terms = self._copies.ending_with(last)
        return AvailableLog(terms[0][0], last, terms) if terms else AvailableLog(0, 0, [])

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


def entries_after(
    raft_group: int, entries: Iterable[E], applied: int, reset: LogPosition | None = None
) -> list[E]:
    """The entries of a raft group behind `applied`, verified as the rest of its log.

    Args:
        entries: all entries of the group in the journal, in order.
        reset: position of its newest reset, None if there is none.

    Raises:
        CorruptData: there is a hole, a term is lower than the one before or the reset's, or the
            reset is above `applied`; the message names raft group and indexes.
    """
    if reset is not None and applied < reset.index:
        raise CorruptData(
            f"raft group {raft_group} is applied up to entry {applied}, "
            f"but its log begins behind entry {reset.index}"
        )
    after = [entry for entry in entries if entry.index > applied]
    if after and after[0].index != applied + 1:
        raise CorruptData(
            f"raft group {raft_group} is applied up to entry {applied}, "
            f"but the journal goes on with entry {after[0].index}"
        )
    if reset is not None and after and after[0].term < reset.term:
        raise CorruptData(
            f"raft group {raft_group}, entry {after[0].index}: term {after[0].term} after {reset.term}"
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
