"""The state of a mirror, as it is written and read."""

import json

import pytest

from pixy.errors import CorruptData
from pixy.mirror.positions import Copied, Positions, change
from pixy.mirror.runs import Run
from pixy.records import TopicPartition

SOURCE, LATER, TARGET = b"s" * 16, b"l" * 16, b"t" * 16


def copied(topic: str, number: int, *runs: Run, source: bytes = SOURCE) -> Copied:
    last = runs[-1]
    return Copied(
        TopicPartition(topic, number),
        source,
        TARGET,
        last.source + last.records,
        sum(run.records for run in runs),
        runs,
    )


def read(*values: bytes) -> Positions:
    positions = Positions()
    for value in values:
        positions.read(value)
    return positions


def test_what_was_written_is_read() -> None:
    first = [copied("a", 0, Run(5, 0, 3)), copied("b", 1, Run(0, 7, 2))]
    second = [copied("a", 0, Run(8, 3, 1), Run(12, 4, 1)), copied("a", 2, Run(0, 0, 1))]
    written = Positions()
    written.add(first)
    written.add(second)
    found = read(*change(first), *change(second))
    assert found.topics == written.topics
    assert found.next(TopicPartition("a", 0), SOURCE) == 13
    assert found.topics["a"].partitions[0].runs == [Run(5, 0, 4), Run(12, 4, 1)]
    assert found.translated(TopicPartition("a", 0), SOURCE, 7) == 2
    assert found.next(TopicPartition("a", 1), SOURCE) is None
    assert found.next(TopicPartition("c", 0), SOURCE) is None


def test_a_whole_record_needs_none_before() -> None:
    positions = Positions()
    positions.add([copied("a", number, Run(0, 0, 3)) for number in range(150)])
    more = [copied("a", 0, Run(3, 3, 4)), copied("b", 0, Run(0, 0, 1))]
    before = {name: dict(topic.partitions) for name, topic in positions.topics.items()}
    values = list(positions.whole(more))
    assert {name: topic.partitions for name, topic in positions.topics.items()} == before
    assert len(values) == 3
    found = read(*change([copied("gone", 0, Run(0, 0, 1))]), *values)
    positions.add(more)
    assert found.topics == positions.topics
    assert found.records == 3


def test_a_replaced_topic_begins_anew() -> None:
    found = read(*change([copied("a", 0, Run(0, 0, 9)), copied("a", 1, Run(0, 0, 9))]))
    assert found.next(TopicPartition("a", 0), LATER) is None
    assert found.translated(TopicPartition("a", 0), LATER, 3) is None
    found.read(*change([copied("a", 0, Run(0, 9, 2), source=LATER)]))
    assert found.next(TopicPartition("a", 0), LATER) == 2
    assert found.next(TopicPartition("a", 1), LATER) is None
    assert found.translated(TopicPartition("a", 0), LATER, 1) == 10


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"version":2,"whole":false,"topics":{}}',
        b'{"version":1,"whole":false,"topics":{"a":{}}}',
        b'{"version":1,"whole":false,"topics":{"a":{"source_id":"x","target_id":"","partitions":{}}}}',
    ],
)
def test_what_is_no_state_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptData):
        Positions().read(value)


def test_the_format_is_as_described() -> None:
    (value,) = change([copied("a", 3, Run(5, 0, 2))])
    assert json.loads(value) == {
        "version": 1,
        "whole": False,
        "topics": {
            "a": {
                "source_id": SOURCE.hex(),
                "target_id": TARGET.hex(),
                "turn": 0,
                "partitions": {"3": {"next": 7, "records": 2, "runs": [[5, 0, 2]]}},
            }
        },
    }
