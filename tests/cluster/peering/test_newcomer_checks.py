"""Newcomers become voters with intact replicas alone."""

from pathlib import Path

import pytest

from pixy.cluster.log import PartitionReplica
from pixy.cluster.snapshots import CopyFetching
from pixy.errors import CorruptData
from pixy.records import TopicPartition
from tests.cluster.moving import begin_move, until_moved
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


def test_a_damaged_newcomer_replaces_nobody_until_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It confirms everything all the while."""
    sweep, repairs = CopyFetching.sweep, [False]

    def sweep_later(self: CopyFetching, now: float) -> None:
        if repairs[0]:
            sweep(self, now)

    monkeypatch.setattr(CopyFetching, "sweep", sweep_later)

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {"replication": "1"})
        await cluster[2].append(b"value")
        [[first]] = cluster[1].node.metadata.topics["topic"].replicas
        leads = cluster.by_id(first)
        newcomer = next(node for node in cluster.nodes.values() if node is not leads)
        partitions, groups = newcomer.node.partitions, leads.node._log.driver.groups
        on_installed = partitions.on_installed

        def damage(replica: PartitionReplica) -> None:
            on_installed(replica)
            partitions.on_installed = on_installed
            partitions.set_fault(replica, CorruptData("a segment is damaged"))

        partitions.on_installed = damage
        await begin_move(leads, [newcomer.id])
        await until(lambda: partitions.damaged_groups)
        group = groups[leads.node.metadata.topics["topic"].raft_groups[0]]
        raft = group.node.raft if group.node is not None else None
        assert raft is not None
        await until(lambda: raft.tracker.progress[newcomer.id].match == raft.log.last_index())
        before = leads.clock.monotonic()
        await until(lambda: leads.clock.monotonic() > before + 10.0)
        assert group.storage.conf_state.voters == (first,)
        repairs[0] = True
        await until_moved([leads, newcomer], [newcomer.id])
        assert await newcomer.values() == [b"value"]

    run_cluster(scenario, tmp_path)
