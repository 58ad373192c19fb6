"""A checker for linearizability: is there an order of all calls that a sequential model explains,
and in which no call precedes one that had ended before it began?

The search is that of Wing and Gong, with Lowe's memory of (calls taken, state) pairs, as in
Porcupine. Histories are checked one object at a time (Horn and Kroening). A call whose outcome is
unknown may take effect at any time after its begin, or never.

The problem is NP-complete: a search has a limit, and one that reaches it has no result. It is no
pass.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["UNKNOWN", "Operation", "Undecided", "explain", "is_linearizable"]

S = TypeVar("S", bound=Hashable)

_STEPS_MAX = 200_000


class _Unknown:
    """The outcome of a call that nobody was told of."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = _Unknown()
"""Output of a call whose outcome is unknown."""


class Undecided(Exception):
    """The search took too long."""


class Operation(NamedTuple):
    """A call on one object.

    Attributes:
        begin, end: positions of begin and end in the history of all calls; an unknown outcome has
            no end, whatever it says.
        input: what was asked.
        output: what was answered, `UNKNOWN` if nothing was.
        who: for readers.
    """

    begin: int
    end: int
    input: Any
    output: Any
    who: str = ""


Step = Callable[[S, Any, Any], Sequence[S]]
"""States behind a call, by the state before it, its input and its output; none if the output cannot
be explained.

With `UNKNOWN` as the output: those that the call may lead to.
"""


class _Event:
    """Begin or end of a call, in a ring that is ordered by time.

    Attributes:
        number: of the call.
        end: end of the call, for its begin; None if its outcome is unknown.
    """

    __slots__ = ("after", "before", "end", "is_begin", "number")

    def __init__(self, number: int, *, is_begin: bool) -> None:
        self.number = number
        self.is_begin = is_begin
        self.before: _Event = self
        self.after: _Event = self
        self.end: _Event | None = None


class _Search(Generic[S]):
    """One search.

    Attributes:
        best: the longest order that was found, and the state behind it.
    """

    def __init__(self, operations: Sequence[Operation], state: S, step: Step[S]) -> None:
        self._operations = operations
        self._step = step
        self._head = _Event(-1, is_begin=False)
        self._left = sum(each.output is not UNKNOWN for each in operations)
        self._link()
        # The state behind the calls that are taken, and their numbers as bits.
        self._state, self._taken = state, 0
        self._seen: set[tuple[int, S]] = set()
        # Taken calls, each with the state before it and the states that are left to try behind it.
        self._stack: list[tuple[_Event, S, list[S]]] = []
        self.best: tuple[list[int], S] = ([], state)

    def _link(self) -> None:
        events: list[tuple[int, _Event]] = []
        for number, operation in enumerate(self._operations):
            begin = _Event(number, is_begin=True)
            events.append((operation.begin, begin))
            if operation.output is not UNKNOWN:
                begin.end = _Event(number, is_begin=False)
                events.append((operation.end, begin.end))
        last = self._head
        for _, event in sorted(events, key=lambda each: each[0]):
            last.after, event.before = event, last
            last = event
        last.after, self._head.before = self._head, last

    def run(self) -> bool:
        """True if an order exists.

        Raises:
            Undecided: nobody knows.
        """
        event: _Event | None = self._head.after
        for _ in range(_STEPS_MAX):
            if not self._left:
                return True
            if event is None:
                return False
            if not event.is_begin:
                # A call has ended that was not taken, or all were tried.
                event = self._go_back()
            elif self._try(event):
                event = self._head.after
            else:
                event = event.after
        raise Undecided

    def _try(self, event: _Event) -> bool:
        """Take a call; False if it explains nothing that is new."""
        operation, taken = self._operations[event.number], self._taken | 1 << event.number
        states = [
            each
            for each in self._step(self._state, operation.input, operation.output)
            if (taken, each) not in self._seen
        ]
        if not states:
            return False
        self._stack.append((event, self._state, states))
        self._take(event)
        self._enter(taken, states.pop())
        return True

    def _go_back(self) -> _Event | None:
        """Try another outcome of the last call that was taken, or another call in its place: the
        event to go on with, None if nothing is left.
        """
        if not self._stack:
            return None
        event, before, states = self._stack.pop()
        states = [each for each in states if (self._taken, each) not in self._seen]
        if states:
            self._stack.append((event, before, states))
            self._enter(self._taken, states.pop())
            return self._head.after
        self._give_back(event)
        self._state, self._taken = before, self._taken & ~(1 << event.number)
        return event.after

    def _enter(self, taken: int, state: S) -> None:
        self._taken, self._state = taken, state
        self._seen.add((taken, state))
        if len(self._stack) > len(self.best[0]):
            self.best = [event.number for event, _, _ in self._stack], state

    def _take(self, event: _Event) -> None:
        for each in (event, event.end):
            if each is not None:
                each.before.after, each.after.before = each.after, each.before
        self._left -= event.end is not None

    def _give_back(self, event: _Event) -> None:
        for each in (event.end, event):
            if each is not None:
                each.before.after = each.after.before = each
        self._left += event.end is not None


def is_linearizable(operations: Sequence[Operation], state: S, step: Step[S]) -> bool:
    """True if a history is linearizable.

    Args:
        operations: calls on one object.
        state: the state before them.
        step: see `Step`.

    Raises:
        Undecided: the search took too long.
    """
    return _Search(operations, state, step).run()


def explain(operations: Sequence[Operation], state: S, step: Step[S]) -> str:
    """Why a history is not linearizable, for a reader; empty if it is.

    Raises:
        Undecided: the search took too long.
    """
    search = _Search(operations, state, step)
    if search.run():
        return ""
    taken, found = search.best
    lines = [f"  {_text(operations[number])}" for number in taken[-6:]]
    left = [each for number, each in enumerate(operations) if number not in taken]
    lines += [
        f"behind these, the state is {found}; no order explains",
        *[f"  {_text(each)}" for each in left],
    ]
    return "\n".join(lines[:20])


def _text(operation: Operation) -> str:
    end = "" if operation.output is UNKNOWN else operation.end
    return f"[{operation.begin}..{end}] {operation.who} {operation.input}: {operation.output}"
