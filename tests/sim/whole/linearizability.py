"""A checker for linearizability: is there an order of all calls that a sequential model explains,
and in which no call precedes one that had ended before it began?

The search is that of Wing and Gong, with Lowe's memory of (calls taken, state) pairs, as in
Porcupine. Histories are checked one object at a time (Horn and Kroening). A call whose outcome is
unknown may take effect at any time after its begin, or never.

The problem is NP-complete: a search has a limit, and one that reaches it has no result. It is no
pass.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)

_STEPS_MAX = 200_000
_SHOWN = 6


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
        reads: a call of this output changes nothing, whatever the state.
    """

    begin: int
    end: int
    input: Any
    output: Any
    who: str = ""
    reads: bool = False


Step = Callable[[S, Any, Any], Sequence[S]]
"""States behind a call, by the state before it, its input and its output; none if the output cannot
be explained.

With `UNKNOWN` as the output: those that the call may lead to.
"""


class _Node(NamedTuple, Generic[S]):
    """Calls that are taken, as bits by their numbers, and the state behind them."""

    taken: int
    state: S


class _Search(Generic[S]):
    """One search.

    Attributes:
        best: numbers of the calls in the longest order that was found, and the state behind it.
    """

    def __init__(self, operations: Sequence[Operation], state: S, step: Step[S]) -> None:
        self._operations = operations
        self._step = step
        numbers = range(len(operations))
        known = [number for number in numbers if operations[number].output is not UNKNOWN]
        self._by_begin = sorted(known, key=lambda number: operations[number].begin)
        self._by_end = sorted(known, key=lambda number: operations[number].end)
        unknown = [number for number in numbers if operations[number].output is UNKNOWN]
        self._unknown = sorted(unknown, key=lambda number: operations[number].begin)
        self._goal = sum(1 << number for number in known)
        self._first = _Node(0, state)
        self._seen = {self._first}
        self.best: tuple[list[int], S] = ([], state)

    def run(self) -> bool:
        """True if an order exists.

        Raises:
            Undecided: nobody knows.
        """
        order: list[int] = []
        stack = [self._following(self._first)]
        node = self._first
        for _ in range(_STEPS_MAX):
            if node.taken & self._goal == self._goal:
                return True
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                if not stack:
                    return False
                order.pop()
                continue
            number, node = found
            order.append(number)
            stack.append(self._following(node))
            if len(order) > len(self.best[0]):
                self.best = list(order), node.state
        raise Undecided

    def _following(self, node: _Node[S]) -> Iterator[tuple[int, _Node[S]]]:
        """Calls that may come next, with what they lead to that is new.

        A read that is explained comes at once: it could be moved here from wherever else it may be.
        """
        taken, state = node
        choices: list[tuple[int, _Node[S]]] = []
        for number in self._candidates(taken):
            operation, behind = self._operations[number], taken | 1 << number
            states = self._step(state, operation.input, operation.output)
            if operation.reads and states and states[0] == state:
                choices = [(number, _Node(behind, state))]
                break
            choices += [(number, _Node(behind, following)) for following in states]
        for number, found in choices:
            if found not in self._seen:
                self._seen.add(found)
                yield number, found

    def _candidates(self, taken: int) -> Iterator[int]:
        """Calls that were not taken and began before the first end of these. Those without a known
        outcome come last: most of them are not needed.
        """
        operations = self._operations
        limit = next((operations[number].end for number in self._by_end if not taken >> number & 1), 0)
        for numbers in (self._by_begin, self._unknown):
            for number in numbers:
                if operations[number].begin >= limit:
                    break
                if not taken >> number & 1:
                    yield number


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
    left = [each for number, each in enumerate(operations) if number not in taken]
    known = sorted((each for each in left if each.output is not UNKNOWN), key=lambda each: each.end)
    lines = [f"  {_text(operations[number])}" for number in taken[-_SHOWN:]]
    lines.append(f"behind these, the state is {found}; no order explains")
    return "\n".join([*lines, *[f"  {_text(each)}" for each in known[:_SHOWN]]])


def _text(operation: Operation) -> str:
    end = "" if operation.output is UNKNOWN else operation.end
    return f"[{operation.begin}..{end}] {operation.who} {operation.input}: {operation.output}"
