"""Topics and committed offsets: histories that their models explain, and others."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.sim.whole.linearizability import UNKNOWN, Operation, is_linearizable
from tests.sim.whole.objects import (
    ACKNOWLEDGED,
    Alter,
    Commit,
    Create,
    Delete,
    Read,
    TopicState,
    Use,
    step_offsets,
    step_topic,
)

MADE = TopicState(b"1", 1, 2, ())
GROWN = TopicState(b"1", 2, 3, ())
AGAIN = TopicState(b"2", 1, 2, ())
CREATE = Create(2, ())
NOTHING: tuple[tuple[int, Any], ...] = ()


def in_order(*calls: tuple[Any, Any]) -> Sequence[Operation]:
    return [Operation(2 * at, 2 * at + 1, *call) for at, call in enumerate(calls)]


TOPICS: dict[str, list[tuple[Any, Any]]] = {
    "created, altered, deleted": [
        (CREATE, MADE),
        (CREATE, "TopicExists"),
        (Alter(3, ()), GROWN),
        (Alter(2, ()), "InvalidArgument"),
        (Use(3), "UnknownPartition"),
        (Use(2), ACKNOWLEDGED),
        (Delete(), ""),
        (Delete(), "UnknownTopic"),
        (Alter(3, ()), "UnknownTopic"),
        (Read(), None),
        (Use(0), "UnknownPartition"),
        (CREATE, AGAIN),
    ],
    "an alteration that changes nothing": [(CREATE, MADE), (Alter(0, ()), MADE), (Alter(2, ()), MADE)],
    "options": [
        (CREATE, MADE),
        (Alter(0, (("a", "1"),)), MADE._replace(version=2, config=(("a", "1"),))),
        (Alter(0, (("a", None),)), MADE._replace(version=3)),
    ],
    "an unknown creation is seen": [(CREATE, UNKNOWN), (Read(), MADE), (Read(), MADE)],
    "an unknown creation is not seen": [(CREATE, UNKNOWN), (Read(), None), (CREATE, MADE)],
    "an unknown alteration takes effect late": [
        (CREATE, MADE),
        (Alter(3, ()), UNKNOWN),
        (Read(), MADE),
        (Read(), GROWN),
    ],
    "an unknown deletion, then another topic": [
        (CREATE, MADE),
        (Delete(), UNKNOWN),
        (CREATE, AGAIN),
        (Read(), AGAIN),
    ],
    "a creation that finds the topic deleted": [(CREATE, "deleted meanwhile"), (Delete(), "")],
    "a deletion that finds another topic": [(CREATE, MADE), (Delete(), "deleted meanwhile"), (Read(), MADE)],
    "a creation that was tried again shows a later state": [(CREATE, GROWN), (Alter(3, ()), GROWN)],
}

NOT_TOPICS: dict[str, list[tuple[Any, Any]]] = {
    "unknown from stale metadata": [(CREATE, MADE), (Read(), None)],
    "a use that finds none": [(CREATE, MADE), (Use(1), "UnknownPartition")],
    "acknowledged after the deletion": [(CREATE, MADE), (Delete(), ""), (Use(0), ACKNOWLEDGED)],
    "acknowledged where there is no partition": [(CREATE, MADE), (Use(2), ACKNOWLEDGED)],
    "created twice": [(CREATE, MADE), (CREATE, AGAIN)],
    "a lost creation": [(CREATE, MADE), (Alter(3, ()), "UnknownTopic")],
    "a lost alteration": [(CREATE, MADE), (Alter(3, ()), GROWN), (Read(), MADE)],
    "deleted and still there": [(CREATE, MADE), (Delete(), ""), (Read(), MADE)],
    "another topic under its name": [(CREATE, MADE), (Read(), AGAIN)],
    "an unknown creation that changes its id": [(CREATE, UNKNOWN), (Read(), MADE), (Read(), AGAIN)],
    "exists before it is made": [(CREATE, "TopicExists")],
    "a version that nothing explains": [(CREATE, MADE), (Read(), MADE._replace(version=2))],
}


@pytest.mark.parametrize("name", TOPICS)
def test_a_history_of_a_topic_is_explained(name: str) -> None:
    assert is_linearizable(in_order(*TOPICS[name]), None, step_topic)


@pytest.mark.parametrize("name", NOT_TOPICS)
def test_a_history_of_a_topic_is_not_explained(name: str) -> None:
    assert not is_linearizable(in_order(*NOT_TOPICS[name]), None, step_topic)


def commit(*offsets: tuple[int, int]) -> Commit:
    return Commit(offsets)


OFFSETS: dict[str, list[tuple[Any, Any]]] = {
    "read as committed": [(commit((0, 5)), ""), (Read(), ((0, 5),))],
    "others stay": [(commit((0, 5), (1, 6)), ""), (commit((1, 7)), ""), (Read(), ((0, 5), (1, 7)))],
    "back to a lower offset": [(commit((0, 5)), ""), (commit((0, 3)), ""), (Read(), ((0, 3),))],
    "an unknown commit is seen late": [
        (commit((0, 5)), UNKNOWN),
        (Read(), ()),
        (commit((0, 6)), ""),
        (Read(), ((0, 6),)),
        (Read(), ((0, 5),)),
    ],
}

NOT_OFFSETS: dict[str, list[tuple[Any, Any]]] = {
    "a lost commit": [(commit((0, 5)), ""), (Read(), ())],
    "a stale read": [(commit((0, 5)), ""), (commit((0, 6)), ""), (Read(), ((0, 5),))],
    "half of a commit": [(commit((0, 5), (1, 6)), UNKNOWN), (Read(), ((0, 5),))],
    "a repeated commit": [
        (commit((0, 5)), ""),
        (commit((0, 6)), ""),
        (Read(), ((0, 6),)),
        (Read(), ((0, 5),)),
    ],
    "never committed": [(Read(), ((0, 5),))],
}


@pytest.mark.parametrize("name", OFFSETS)
def test_a_history_of_offsets_is_explained(name: str) -> None:
    assert is_linearizable(in_order(*OFFSETS[name]), NOTHING, step_offsets)


@pytest.mark.parametrize("name", NOT_OFFSETS)
def test_a_history_of_offsets_is_not_explained(name: str) -> None:
    assert not is_linearizable(in_order(*NOT_OFFSETS[name]), NOTHING, step_offsets)
