"""Topics that are deleted and consumer groups that end leave nothing in the memory of any node."""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from tests.backend.group_members import GroupNode
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

Use = Callable[[NodeCluster, int], Awaitable[None]]

_FIRST, _MORE = 4, 12
_BOUNDED = {
    "pixy.raft.messages.Entry",
    "pixy.entry_ids.ProposalId",
    "pixy.multiraft.dedup_table._Row",
}
"""Of state groups: entries for followers, up to a limit in bytes, and the last results."""


async def topic_that_is_deleted(cluster: NodeCluster, number: int) -> None:
    topic = f"topic-{number}"
    await cluster[1 + number % 3].backend.create_topic(topic, 2)
    for partition in (0, 1):
        await cluster[1].append(b"value", topic=topic, partition=partition)
        for node in cluster.nodes.values():
            assert await node.values(topic=topic, partition=partition) == [b"value"]
    await cluster[1 + (number + 1) % 3].backend.delete_topic(topic)
    await until(lambda: all(topic not in node.node.metadata.topics for node in cluster.nodes.values()))


async def group_that_ends(cluster: NodeCluster, number: int) -> None:
    group = f"group-{number}"
    members = [await GroupNode(cluster[each], "stays", group=group).join() for each in (1, 2)]
    await until(
        lambda: all(member.told and len(member.told[-1].get("stays", ())) == 10 for member in members)
    )
    for member in members:
        assert len(member.node.backend.other_owners(group, "stays")) == 1
    for member in members:
        await member.membership.leave()
    for node in cluster.nodes.values():
        state = node.node.state_groups.offsets_of(group)
        await until(lambda: not state.membership(group).members)  # noqa: B023  # awaited at once


async def offsets_of_a_topic_that_is_deleted(cluster: NodeCluster, number: int) -> None:
    topic = f"consumed-{number}"
    await cluster[1].backend.create_topic(topic, 1)
    await cluster[2].backend.commit_offsets(
        "group", {TopicPartition(topic, 0): OffsetCommit(0, "text")}, set=True
    )
    await cluster[3].backend.delete_topic(topic)
    await until(
        lambda: (
            not any(node.node.state_groups.offsets_of("group").topic_ids() for node in cluster.nodes.values())
        )
    )


def objects() -> Counter[str]:
    """Objects of pixy's classes, by class."""
    gc.collect()
    kinds = Counter(type(each) for each in gc.get_objects())
    return Counter(
        {
            f"{kind.__module__}.{kind.__name__}": count
            for kind, count in kinds.items()
            if kind.__module__.startswith("pixy.")
        }
    )


USES: tuple[Use, ...] = (topic_that_is_deleted, group_that_ends, offsets_of_a_topic_that_is_deleted)


def test_nothing_is_left(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("stays", 20)  # more than a few: owners are remembered
        for number in range(_FIRST):
            for use in USES:
                await use(cluster, number)
        await asyncio.sleep(60)
        before = objects()
        for number in range(_FIRST, _FIRST + _MORE):
            for use in USES:
                await use(cluster, number)
        await asyncio.sleep(60)
        grown = {kind for kind, count in (objects() - before).items() if count >= _MORE}
        assert not grown - _BOUNDED

    run_cluster(scenario, tmp_path)
