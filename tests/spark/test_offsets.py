"""Offsets in a checkpoint: the text that Spark compares, the start of batch 0, shares of a limit,
due times of batches.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.records import TopicPartition
from pixy.spark.offsets import (
    Offsets,
    Pace,
    Reached,
    began_at,
    from_json,
    initial_json,
    is_initial,
    limit_offsets,
    to_json,
)


def offsets(**topics: list[int]) -> Offsets:
    return {
        TopicPartition(topic, place): offset
        for topic, ends in topics.items()
        for place, offset in enumerate(ends)
    }


def reached(**topics: list[int]) -> Reached:
    return Reached(offsets(**topics), {topic: topic.encode() * 16 for topic in topics})


def through_json(form: object) -> dict[str, Any]:
    """The form as Spark stores it."""
    found: dict[str, Any] = json.loads(json.dumps(form))
    return found


def test_the_text_does_not_depend_on_the_order_of_offsets_and_ids() -> None:
    one = reached(b=[1, 2], a=list(range(12)))
    text = json.dumps(to_json(one))
    other = Reached(dict(reversed(list(one.offsets.items()))), dict(reversed(list(one.topic_ids.items()))))
    assert text == json.dumps(to_json(other))
    assert text == json.dumps(to_json(from_json(json.loads(text))))
    assert list(json.loads(text)) == ["$ids", "a", "b"]
    assert list(json.loads(text)["$ids"]) == ["a", "b"]
    assert list(json.loads(text)["a"]) == [str(partition) for partition in range(12)]


def test_the_end_of_batch_0_carries_its_start() -> None:
    end = through_json(to_json(reached(t=[15]), start=reached(t=[10])))
    asked_again = through_json(initial_json(reached(t=[20])))
    assert is_initial(asked_again)
    assert not is_initial(end)
    assert began_at(asked_again, end) == reached(t=[10])
    assert from_json(end) == reached(t=[15])


def test_an_empty_start_of_batch_0_stays_empty() -> None:
    end = through_json(to_json(reached(t=[5]), start=Reached({})))
    assert began_at(initial_json(reached(t=[5])), end) == Reached({})


def test_a_later_batch_begins_at_its_start() -> None:
    first_end = to_json(reached(t=[15]), start=reached(t=[10]))
    assert began_at(first_end, to_json(reached(t=[30]))) == reached(t=[15])


def test_a_checkpoint_of_an_earlier_release_has_no_ids() -> None:
    earlier = {"$start": {"t": {"0": 10}}, "t": {"0": 15}}
    assert from_json(earlier) == Reached(offsets(t=[15]))
    assert began_at({"$start": None, "t": {"0": 20}}, earlier) == Reached(offsets(t=[10]))
    assert to_json(Reached(offsets(t=[15]))) == {"t": {"0": 15}}


def test_a_topic_is_recreated_only_if_both_ids_are_known() -> None:
    one = reached(t=[15])
    assert one.is_recreated("t", b"u" * 16)
    assert not one.is_recreated("t", b"t" * 16)
    assert not one.is_recreated("t", None)
    assert not one.is_recreated("unknown", b"u" * 16)
    assert reached(t=[15], u=[1]).without(["u"]) == one


def test_a_topic_may_be_named_like_a_marker_without_its_dollar() -> None:
    named = reached(start=[1], _start=[2], ids=[3])
    assert from_json(initial_json(named)) == named


BACKLOGS = st.dictionaries(
    st.integers(0, 9), st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1
)


@pytest.mark.slow
@given(BACKLOGS, st.integers(1, 20_000))
def test_a_limit_is_shared_by_partitions_and_reaches_the_end(
    backlogs: dict[int, tuple[int, int]], records: int
) -> None:
    start = {TopicPartition("t", place): begin for place, (begin, _) in backlogs.items()}
    latest = {TopicPartition("t", place): begin + size for place, (begin, size) in backlogs.items()}
    limited = limit_offsets(start, latest, records)
    taken = sum(limited[each] - start[each] for each in latest)
    assert taken < records + len(latest), "a share of less than one record is one"
    for each, end in latest.items():
        assert start[each] + (end > start[each]) <= limited[each] <= end
    if sum(size for _, size in backlogs.values()) <= records:
        assert limited == latest


def test_shares_are_in_proportion_to_the_backlog() -> None:
    assert limit_offsets(offsets(t=[0, 0, 50]), offsets(t=[900, 100, 50]), 100) == offsets(t=[90, 10, 50])


def test_a_new_partition_begins_at_0() -> None:
    assert limit_offsets(offsets(t=[10]), offsets(t=[10, 40]), 4) == offsets(t=[10, 4])


def test_a_batch_is_due_with_enough_records_or_after_the_delay() -> None:
    pace = Pace(min_records=100, max_delay_seconds=60)
    assert pace.is_due(1, now=1000.0), "the first one does not wait"
    assert not pace.is_due(99, now=1059.0)
    assert pace.is_due(100, now=1059.0)
    assert not pace.is_due(99, now=1118.0)
    assert pace.is_due(99, now=1119.0)


def test_without_a_minimum_every_batch_is_due() -> None:
    pace = Pace(None, 900)
    assert pace.is_due(1, now=0.0)
    assert pace.is_due(1, now=0.1)
