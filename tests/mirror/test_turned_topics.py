"""Topics that a mirror in the other direction has copied last."""

import pytest

from pixy.mirror.positions import Copied, Positions
from pixy.mirror.runs import Run
from pixy.mirror.turned_topics import turned_elsewhere
from pixy.proto.pixy_log_pb2 import Topic
from pixy.records import TopicPartition

HERE, THERE, LATER = b"h" * 16, b"t" * 16, b"l" * 16
TOPICS, COPIES = {"a": Topic(topic="a", topic_id=HERE)}, {"a": Topic(topic="a", topic_id=THERE)}


def positions(source: bytes, target: bytes, turn: int | None) -> Positions:
    found = Positions()
    if turn is not None:
        found.add([Copied(TopicPartition("a", 0), source, target, 1, 1, (Run(0, 0, 1),), turn)])
    return found


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [(None, None, []), (None, 0, ["a"]), (0, None, []), (0, 1, ["a"]), (1, 0, []), (2, 1, []), (2, 3, ["a"])],
)
def test_the_higher_turn_is_right(own: int | None, other: int | None, expected: list[str]) -> None:
    found = turned_elsewhere(positions(HERE, THERE, own), positions(THERE, HERE, other), TOPICS, COPIES)
    assert found == expected


def test_another_topic_of_the_name_was_not_copied() -> None:
    own, other = positions(HERE, THERE, None), positions(THERE, HERE, 0)
    later = {"a": Topic(topic="a", topic_id=LATER)}
    assert turned_elsewhere(own, other, later, COPIES) == []
    assert turned_elsewhere(own, other, TOPICS, later) == []
    assert turned_elsewhere(own, other, {}, COPIES) == []
    assert turned_elsewhere(own, other, TOPICS, {}) == []
