"""The range and round-robin assignors: properties, and aiokafka's as the model."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from pixy.kafka_protocol.assignors import assign_round_robin, assign_topic_ranges, split_range

Assigned = dict[str, dict[str, list[int]]]


class Cluster:
    """Partition counts, for aiokafka's assignors."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self._counts[topic]))


@given(st.integers(1, 30), st.integers(0, 200))
def test_ranges_are_contiguous_complete_and_fair(members: int, partitions: int) -> None:
    ranges = split_range(partitions, members)
    assert len(ranges) == members
    assert [each for one in ranges for each in one] == list(range(partitions))
    sizes = [len(one) for one in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (assign_topic_ranges, RangePartitionAssignor),
        (assign_round_robin, RoundRobinPartitionAssignor),
    ],
)
@given(
    subscriptions=st.dictionaries(
        st.text("ab", min_size=1, max_size=3), st.sets(st.sampled_from("tuvw")), min_size=1, max_size=5
    ),
    counts=st.fixed_dictionaries({topic: st.integers(1, 7) for topic in "tuvw"}),
)
def test_members_get_what_kafkas_assignor_gives_them(
    ours: Callable[[Mapping[str, list[str]], Mapping[str, int]], Assigned],
    theirs: Any,
    subscriptions: dict[str, set[str]],
    counts: dict[str, int],
) -> None:
    wanted = {member: sorted(topics) for member, topics in sorted(subscriptions.items())}
    metadata = {m: ConsumerProtocolMemberMetadata(0, topics, b"") for m, topics in wanted.items()}
    expected = {m: dict(each.assignment) for m, each in theirs.assign(Cluster(counts), metadata).items()}
    assert ours(wanted, counts) == expected


def test_a_topic_without_partitions_is_assigned_empty() -> None:
    assert assign_topic_ranges({"a": ["t"]}, {"t": 0}) == {"a": {"t": []}}
