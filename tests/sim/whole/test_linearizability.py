"""The checker passes histories that are linearizable, and no others."""

from collections.abc import Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest

from tests.sim.whole import linearizability
from tests.sim.whole.linearizability import UNKNOWN, Operation, Undecided, explain, is_linearizable

READ, WRITE, ADD = "read", "write", "add"


def step(state: int, input: tuple[str, int], output: Any) -> Sequence[int]:
    """A register: `add` answers the value before it."""
    verb, value = input
    if verb == READ:
        return [state] if output in (state, UNKNOWN) else []
    if verb == WRITE:
        return [value]
    return [state + value] if output in (state, UNKNOWN) else []


def history(*lines: tuple[int, int, tuple[str, int], Any]) -> list[Operation]:
    return [Operation(*line) for line in lines]


GOOD = {
    "nothing": (),
    "one after the other": ((0, 1, (WRITE, 1), None), (2, 3, (READ, 0), 1)),
    "a read during a write sees the old value": ((0, 3, (WRITE, 1), None), (1, 2, (READ, 0), 0)),
    "a read during a write sees the new value": ((0, 3, (WRITE, 1), None), (1, 2, (READ, 0), 1)),
    "two reads during a write see old and new": (
        (0, 5, (WRITE, 1), None),
        (1, 2, (READ, 0), 0),
        (3, 4, (READ, 0), 1),
    ),
    "an unknown write takes effect late": (
        (0, 0, (WRITE, 1), UNKNOWN),
        (1, 2, (READ, 0), 0),
        (3, 4, (WRITE, 2), None),
        (5, 6, (READ, 0), 2),
        (7, 8, (READ, 0), 1),
    ),
    "an unknown write never takes effect": ((0, 0, (WRITE, 1), UNKNOWN), (1, 2, (READ, 0), 0)),
    "concurrent additions in the other order": ((0, 3, (ADD, 1), 2), (1, 2, (ADD, 2), 0)),
    "only unknown outcomes": ((0, 0, (WRITE, 1), UNKNOWN), (1, 0, (ADD, 1), UNKNOWN)),
}

BAD = {
    "a value that was never written": ((0, 1, (READ, 0), 7),),
    "a stale read": ((0, 1, (WRITE, 1), None), (2, 3, (READ, 0), 0)),
    "a lost write": (
        (0, 1, (WRITE, 1), None),
        (2, 3, (WRITE, 2), None),
        (4, 5, (READ, 0), 2),
        (6, 7, (READ, 0), 1),
    ),
    "two reads during a write see new and old": (
        (0, 5, (WRITE, 1), None),
        (1, 2, (READ, 0), 1),
        (3, 4, (READ, 0), 0),
    ),
    "an unknown write takes effect twice": (
        (0, 0, (WRITE, 1), UNKNOWN),
        (1, 2, (READ, 0), 1),
        (3, 4, (WRITE, 2), None),
        (5, 6, (READ, 0), 1),
    ),
    "an unknown write takes effect before it began": ((0, 1, (READ, 0), 1), (2, 0, (WRITE, 1), UNKNOWN)),
    "two additions with one answer": ((0, 3, (ADD, 1), 0), (1, 2, (ADD, 1), 0)),
    "an addition that repeats": (
        (0, 1, (ADD, 1), 0),
        (2, 3, (READ, 0), 2),
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_linearizable_history_passes(name: str) -> None:
    assert is_linearizable(history(*GOOD[name]), 0, step)
    assert explain(history(*GOOD[name]), 0, step) == ""


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_no_order_explains_does_not_pass(name: str) -> None:
    assert not is_linearizable(history(*BAD[name]), 0, step)


def test_an_explanation_shows_the_longest_order_and_what_is_left() -> None:
    text = explain(history(*BAD["a lost write"]), 0, step)
    assert text.splitlines() == [
        "  [0..1]  ('write', 1): None",
        "  [2..3]  ('write', 2): None",
        "  [4..5]  ('read', 0): 2",
        "behind these, the state is 2; no order explains",
        "  [6..7]  ('read', 0): 1",
    ]


def test_a_model_may_leave_the_state_open() -> None:
    def choose(state: int, input: str, output: Any) -> Sequence[int]:
        return [1, 2, 3] if input == "choose" else [state] if output == state else []

    chosen = Operation(0, 1, "choose", None)
    for value in (1, 2, 3):
        assert is_linearizable([chosen, Operation(2, 3, "read", value)], 0, choose)
    reads = [Operation(2, 3, "read", 1), Operation(4, 5, "read", 2)]
    assert not is_linearizable([chosen, *reads], 0, choose)


def test_a_search_that_takes_too_long_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "_STEPS_MAX", 5000)
    additions = [Operation(number, 0, (ADD, 1 << number), UNKNOWN) for number in range(24)]
    with pytest.raises(Undecided):
        is_linearizable([*additions, Operation(99, 100, (READ, 0), -1)], 0, step)


@pytest.mark.slow
def test_long_histories_of_few_clients_are_searched_quickly() -> None:
    rng = Random(1)
    operations, value, clock = [], 0, 0
    for _ in range(150):
        # Three calls at a time, in an order that the history does not show.
        for offset in rng.sample(range(3), 3):
            operations.append(Operation(clock + offset, clock + 5 + offset, (ADD, 1), value))
            value += 1
        clock += 10
    assert is_linearizable(operations, 0, step)
    assert not is_linearizable([*operations, Operation(clock, clock + 1, (READ, 0), 1)], 0, step)


def by_force(operations: Sequence[Operation]) -> bool:
    """The definition: some subset of the unknown calls, in some order."""
    known = [each for each in operations if each.output is not UNKNOWN]
    unknown = [each for each in operations if each.output is UNKNOWN]
    for chosen in range(1 << len(unknown)):
        taken = known + [each for number, each in enumerate(unknown) if chosen >> number & 1]
        if any(_explains(order) for order in permutations(taken)):
            return True
    return False


def _explains(order: Sequence[Operation]) -> bool:
    state = 0
    for number, operation in enumerate(order):
        for later in order[number + 1 :]:
            if later.output is not UNKNOWN and later.end < operation.begin:
                return False
        states = step(state, operation.input, operation.output)
        if not states:
            return False
        state = states[0]
    return True


@pytest.mark.slow
def test_small_histories_are_judged_as_by_the_definition() -> None:
    rng = Random(2)
    judged = {True: 0, False: 0}
    for _ in range(1500):
        moments = rng.sample(range(20), 10)
        operations = []
        for number in range(rng.randint(1, 5)):
            begin, end = sorted(moments[2 * number : 2 * number + 2])
            verb = rng.choice((READ, WRITE, ADD))
            output: Any = None if verb == WRITE else rng.randrange(4)
            if rng.random() < 0.25:
                output = UNKNOWN
            reads = verb == READ and rng.random() < 0.5
            operations.append(Operation(begin, end, (verb, rng.randrange(1, 4)), output, reads=reads))
        expected = by_force(operations)
        judged[expected] += 1
        assert is_linearizable(operations, 0, step) is expected, operations
    assert min(judged.values()) > 300
