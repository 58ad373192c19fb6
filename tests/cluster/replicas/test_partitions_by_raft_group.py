"""Partitions by raft group, compared with a dict."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.replicas.partitions_by_raft_group import PartitionsByRaftGroup, group_name
from pixy.cluster.state.topic import Topic
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP, RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState
from pixy.records import TopicPartition
from tests.cluster.nodes import Cluster


class Topics:
    """Topics whose partitions get raft groups as in metadata, and what is known of these."""

    def __init__(self) -> None:
        self.names = PartitionsByRaftGroup()
        self.known: dict[int, TopicPartition] = {}
        self.next_group = FIRST_PARTITION_GROUP
        self.topics: dict[str, Topic] = {}

    def grow(self, name: str, count: int) -> None:
        """Add partitions to a topic, which may be new."""
        topic = self.topics.get(name) or Topic(name, name.encode(), 1, {}, ())
        groups = tuple(range(self.next_group, self.next_group + count))
        self.next_group += count
        for number, group in enumerate(groups, len(topic.raft_groups)):
            self.known[group] = TopicPartition(name, number)
        topic = self.topics[name] = replace(topic, raft_groups=topic.raft_groups + groups)
        self.names.put(topic)

    def delete(self, name: str) -> None:
        """Delete a topic, if there is one."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            for group in topic.raft_groups:
                del self.known[group]
            self.names.remove(topic)

    def repeat(self, name: str) -> None:
        """Put a topic that is known as it is."""
        if name in self.topics:
            self.names.put(self.topics[name])

    def check(self) -> None:
        """Compare every raft group, and some that nobody has."""
        groups = range(FIRST_PARTITION_GROUP - 2, self.next_group + 2)
        assert {group: found for group in groups if (found := self.names.find(group))} == self.known


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grow", "grow", "delete", "repeat"]), st.sampled_from("abc"), st.integers(0, 4)
        ),
        max_size=20,
    )
)
def test_every_raft_group_has_the_partition_that_it_was_made_for(steps: list[tuple[str, str, int]]) -> None:
    topics = Topics()
    for step, name, count in steps:
        if step == "grow":
            topics.grow(name, count)
        elif step == "delete":
            topics.delete(name)
        else:
            topics.repeat(name)
        topics.check()


def test_partitions_that_were_created_together_are_one_range() -> None:
    topics = Topics()
    topics.grow("a", 10_000)
    topics.grow("b", 1)
    topics.grow("a", 5_000)
    topics.check()
    assert len(topics.names._runs) == 3


def test_a_topic_whose_groups_are_scattered_is_found() -> None:
    topics = Topics()
    groups = (5, 3, 4, 9, 10, 7)
    topics.names.put(Topic("a", b"a", 1, {}, groups))
    assert [topics.names.find(group) for group in groups] == [
        TopicPartition("a", number) for number in range(6)
    ]
    assert [topics.names.find(group) for group in (2, 6, 8, 11)] == [None] * 4


def test_a_topic_of_the_name_of_a_deleted_one_has_its_own_groups() -> None:
    topics = Topics()
    topics.grow("a", 3)
    topics.delete("a")
    topics.delete("a")
    topics.grow("a", 2)
    topics.check()
    assert topics.names.find(FIRST_PARTITION_GROUP) is None


async def test_a_raft_group_has_a_name_for_people(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.append(b"value", partition=1)
        groups = cluster.node._log.driver.groups
        assert [group_name(groups[number]) for number in (1, 2, 3, FIRST_PARTITION_GROUP + 1)] == [
            "metadata",
            "groups-0",
            "groups-1",
            "partition 1 of topic topic",
        ]
    assert group_name(RaftGroup(7, RaftStorage(ConfState((1,))), 1)) == "raft group 7"
