"""Members of partitions that move: those of the target, whoever leads, and the end of each move."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from pixy.cluster.log import PartitionReplica
from pixy.multiraft import RaftGroup
from pixy.multiraft.outbox import Outbox
from pixy.raft import Message
from pixy.records import TopicPartition
from tests.cluster.moving import begin_move, until_moved
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


def replica_of(node: ClusterNode) -> PartitionReplica:
    replica = node.node.partition(TOPIC)
    assert replica is not None
    return replica


def group_of(node: ClusterNode) -> RaftGroup:
    group = replica_of(node).group
    assert group is not None
    return group


def voters(node: ClusterNode) -> tuple[int, ...]:
    return group_of(node).storage.conf_state.voters


async def leader(nodes: Iterable[ClusterNode]) -> ClusterNode:
    replicas = [*nodes]

    def led() -> list[ClusterNode]:
        return [node for node in replicas if group_of(node).leads]

    await until(led)
    return led()[0]


@pytest.mark.parametrize("goes", [1, 2, 3])
def test_a_replica_goes_and_the_move_ends(tmp_path: Path, goes: int) -> None:
    """Also that of the leader, which hands over first."""

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        target = [node_id for node_id in (1, 2, 3) if node_id != goes]
        await begin_move(cluster[2], target)
        await until_moved([*cluster.nodes.values()], target)
        stays = [cluster.by_id(node_id) for node_id in target]
        assert [voters(node) for node in stays] == [tuple(target)] * 2
        assert stays[0].node.metadata.topics["topic"].placement(0) == 1
        await stays[0].append(b"after")
        assert await stays[1].values() == [b"before", b"after"]

    run_cluster(scenario, tmp_path)


def test_another_preferred_leader_leads(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        assert cluster[1].node.metadata.topics["topic"].replicas == ((1, 2, 3),)
        await begin_move(cluster[1], (3, 1, 2))
        await until_moved([*cluster.nodes.values()], (3, 1, 2))
        await until(lambda: group_of(cluster.by_id(3)).leads)
        assert voters(cluster[1]) == (1, 2, 3)

    run_cluster(scenario, tmp_path)


def test_a_leader_changes_no_members_before_it_has_read_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lag, and not know that the move of its predecessor was taken back."""
    held: list[Callable[[], None]] = []

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        leads = await leader(cluster.nodes.values())
        reads, metadata = leads.node._log.driver.reads, leads.node.state_groups.metadata_replica.group
        begin = reads.begin

        def hold(group: RaftGroup, done: Callable[[], None]) -> None:
            if group is metadata:
                held.append(done)
            else:
                begin(group, done)

        monkeypatch.setattr(reads, "begin", hold)
        target = [node_id for node_id in (1, 2, 3) if node_id != leads.id]
        await begin_move(leads, [leads.id, target[0]])
        await until(lambda: held)
        for _ in range(3):
            before = cluster[1].clock.monotonic()
            await until(lambda before=before: cluster[1].clock.monotonic() > before + 1.0)  # type: ignore[misc]  # bound
            assert voters(leads) == (1, 2, 3)
        for done in held:
            done()
        await until(lambda: voters(leads) == tuple(sorted([leads.id, target[0]])))

    run_cluster(scenario, tmp_path)


def test_a_move_that_is_taken_back_ends_where_it_began(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        before = cluster[1].node.metadata.topics["topic"].replicas[0]
        for node in cluster.nodes.values():
            assert node.node.peers is not None
            node.node.peers.stopping = True  # it proposes no change
        await begin_move(cluster[1], (1, 2))
        for node in cluster.nodes.values():
            await until(lambda node=node: node.node.metadata.topics["topic"].moves)  # type: ignore[misc]  # bound
            [described] = (await node.backend.describe_topic("topic")).partitions
            assert (described.replicas, described.moves_to) == (before, (1, 2))
        await begin_move(cluster[1], before)
        for node in cluster.nodes.values():
            assert node.node.peers is not None
            node.node.peers.stopping = False
        await until_moved([*cluster.nodes.values()], before)
        assert voters(cluster[1]) == (1, 2, 3)

    run_cluster(scenario, tmp_path)


def test_a_move_does_not_end_while_its_leader_alone_knows_that_the_change_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were lost then, the others would need votes of nodes that have departed."""
    post = Outbox.post
    holds = [True]

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        [replicas] = cluster[1].node.metadata.topics["topic"].replicas
        leads = await leader(cluster.by_id(node_id) for node_id in replicas)
        group = group_of(leads)
        [newcomer] = {1, 2, 3, 4} - {*replicas}
        [stays, _] = [each for each in replicas if each != leads.id]
        target = tuple(sorted([leads.id, stays, newcomer]))

        def knows() -> bool:
            state = group.storage.conf_state
            return state.voters == target and not state.voters_outgoing

        def post_before(self: Outbox, raft_group: int, messages: Sequence[Message]) -> None:
            if not (holds[0] and raft_group == group.raft_group and knows()):
                post(self, raft_group, messages)

        monkeypatch.setattr(Outbox, "post", post_before)
        await begin_move(leads, target)
        await until(knows)
        before = leads.clock.monotonic()
        await until(lambda: leads.clock.monotonic() > before + 0.7)
        assert all(node.node.metadata.topics["topic"].moves for node in cluster.nodes.values())
        holds[0] = False
        await until_moved([*cluster.nodes.values()], target)

    run_cluster(scenario, tmp_path, 4)
