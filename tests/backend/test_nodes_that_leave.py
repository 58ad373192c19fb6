"""Nodes that leave a cluster: what they are needed for, and what becomes of them."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.cluster import LostMajority, problems, reasons_to_keep
from pixy.cluster.peering import cluster_search, node_peers
from pixy.cluster.replicas.partitions_by_raft_group import group_name
from pixy.cluster.state.nodes import SEEN_LEVEL
from pixy.cluster.unsafe_recovery import stopped_node
from pixy.errors import FailedPrecondition, Unavailable
from pixy.multiraft.driver import Driver
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import NONE, ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState
from pixy.records import OffsetCommit, TopicPartition
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until
from tests.fakes.worker import InlineWorker

pytestmark = pytest.mark.slow


async def listed(node: ClusterNode) -> list[int]:
    """The nodes in the status of the cluster."""
    return [each.node_id for each in (await node.backend.cluster_status()).nodes]


async def until_dispensable(node_id: int, at: ClusterNode) -> None:
    """Return once a cluster can do without a node, as far as another one knows."""

    async def dispensable() -> bool:
        return not reasons_to_keep(await at.backend.cluster_status(), node_id)

    await until(dispensable)


async def until_left(at: ClusterNode, node_id: int) -> None:
    async def left() -> bool:
        return node_id not in await listed(at)

    await until(left)


def test_a_removed_node_is_listed_until_no_raft_group_needs_it(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        await cluster[2].append(b"value")
        gone, asked = cluster[3], cluster[1]
        await cluster[2].backend.remove_node(gone.id)
        (node,) = [each for each in (await asked.backend.cluster_status()).nodes if each.node_id == gone.id]
        assert node.removed
        assert f"node {gone.id} was removed, and is a member of raft groups" in str(
            problems(await asked.backend.cluster_status())
        )
        await until_left(asked, gone.id)
        for group in (await asked.backend.cluster_status()).groups:
            assert gone.id not in (*group.voters, *group.learners, *group.voters_outgoing)
        await gone.kill()
        assert await asked.append(b"next") == 1

    run_cluster(scenario, tmp_path)


def test_a_removed_node_is_not_ready_any_more(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gone = cluster[3]
        assert gone.backend.fault == ""
        await cluster[1].backend.remove_node(gone.id)
        await until(lambda: gone.backend.fault != "")
        assert gone.backend.fault == "this node was removed from the cluster"
        await until_left(cluster[1], gone.id)
        assert problems(await gone.backend.cluster_status())[0] == (
            f"this node was removed: it can be stopped when the others do not list node {gone.id} any more"
        )

    run_cluster(scenario, tmp_path)


def test_a_removed_node_takes_no_messages_from_the_moment_that_it_knows(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gone, asked = cluster[3], cluster[1]
        await asked.backend.create_topic("topic", 3)
        await gone.append(b"before")
        await asked.backend.remove_node(gone.id)
        await until(lambda: gone.backend.fault != "")
        assert gone.node.left == ""  # its raft groups have it yet
        for partition in range(3):
            with pytest.raises(Unavailable, match="this node was removed from the cluster: use another one"):
                await gone.append(b"after", partition=partition)
            await asked.append(b"after", partition=partition)

    run_cluster(scenario, tmp_path)


AT = TopicPartition("topic", 0)

CALLS: dict[str, Callable[[ClusterNode], Awaitable[object]]] = {
    "append": lambda node: node.append(b"value"),
    "fetch": lambda node: node.fetch(),
    "offset ranges": lambda node: node.backend.offset_ranges("topic"),
    "describe": lambda node: node.backend.describe_topic("topic"),
    "list topics": lambda node: node.backend.list_topics(),
    "create": lambda node: node.backend.create_topic("other", 1),
    "committed": lambda node: node.backend.committed_offsets("group", "topic"),
    "commit": lambda node: node.backend.commit_offsets("group", {AT: OffsetCommit(0, "")}, set=True),
    "groups": lambda node: node.backend.list_groups(),
    "remove": lambda node: node.backend.remove_node(1),
}


async def answers_of(node: ClusterNode) -> dict[str, str]:
    """Errors of calls at a node, by their names."""
    answers = {}
    for name, call in CALLS.items():
        with pytest.raises(Unavailable) as raised:
            await call(node)
        answers[name] = str(raised.value)
    return answers


@pytest.mark.parametrize("replication", ["1", "3"])
def test_a_node_that_has_left_says_so_to_every_call(tmp_path: Path, replication: str) -> None:
    """Of partitions with a replica there, and of others."""

    async def scenario(cluster: NodeCluster) -> None:
        gone = cluster.by_id(3)
        # The first replica is at node 1.
        await gone.backend.create_topic("topic", 1, {"replication": replication})
        await gone.append(b"value")
        await cluster.by_id(1).backend.remove_node(3)
        await until_left(cluster.by_id(1), 3)
        await until(lambda: gone.node.left != "")
        expected = "node 3 has left the cluster: with an empty data directory it can join as a new one"
        assert await answers_of(gone) == dict.fromkeys(CALLS, expected)

    run_cluster(scenario, tmp_path)


def test_a_node_that_did_not_hear_of_its_removal_is_told_by_the_refusals_of_the_others(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gone, asked = cluster.by_id(3), cluster.by_id(1)
        await asked.backend.create_topic("topic", 1)
        cluster.split(gone.number)
        await until(lambda: asked.node.unreachable() == [3])
        await asked.backend.remove_node(3)
        await until_left(asked, 3)
        cluster.network.heal()
        expected = "node 3 has left the cluster: with an empty data directory it can join as a new one"
        await until(lambda: gone.backend.fault == expected)
        for name in ("offset ranges", "describe", "committed", "groups"):
            with pytest.raises(Unavailable, match=expected):
                await CALLS[name](gone)

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("knows", [True, False])
def test_a_removed_node_that_starts_again_is_told_so(tmp_path: Path, knows: bool) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gone, asked = cluster[3], cluster[1]
        if not knows:
            await gone.kill()
        await asked.backend.remove_node(gone.id)
        if knows:
            await until(lambda: gone.backend.fault != "")
            await gone.kill()
        await until_left(asked, gone.id)
        await asyncio.sleep(3.0)
        await gone.begin()
        await asyncio.sleep(2.0)
        assert f"node {gone.id} has left the cluster: with an empty data directory" in gone.backend.fault
        assert not asked.node.unreachable()

    run_cluster(scenario, tmp_path)


def test_a_node_is_not_removed_while_the_others_are_no_majority_without_it(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        down, needed, asked = cluster[1], cluster[2], cluster[3]
        await down.kill()
        await until(lambda: asked.node.unreachable() == [down.id])
        await asyncio.sleep(3.0)
        voters = " and ".join(map(str, sorted([down.id, asked.id])))
        expected = (
            f"node {needed.id} is needed: .*of voters {voters} only {asked.id} would be up and caught up"
        )
        with pytest.raises(FailedPrecondition, match=expected):
            await asked.backend.remove_node(needed.id)
        assert await listed(asked) == [1, 2, 3]
        await asked.backend.remove_node(down.id)
        await until_left(asked, down.id)
        await until_dispensable(needed.id, asked)
        await asked.backend.remove_node(needed.id)
        await until_left(asked, needed.id)
        await needed.kill()
        await asked.backend.create_topic("topic", 1)
        assert await asked.append(b"alone") == 0

    run_cluster(scenario, tmp_path)


def test_a_node_is_not_forgotten_by_its_own_vote(tmp_path: Path) -> None:
    """If a majority needs it, the entry would be committed when it comes back."""

    async def scenario(cluster: NodeCluster) -> None:
        asked, first, second = cluster[1], cluster[2], cluster[3]
        for node in (first, second):
            await node.kill()
        await until(lambda: asked.node.unreachable() == [first.id, second.id])
        with pytest.raises(Unavailable, match=f"reaches 1 without node {first.id}, which is no majority"):
            await asked.backend.forget_node(first.id)
        await first.start()
        await asyncio.sleep(5.0)
        assert await listed(asked) == [1, 2, 3]
        await asked.backend.create_topic("topic", 1)

    run_cluster(scenario, tmp_path)


def test_a_node_is_not_forgotten_that_a_state_group_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have let a removed node go, and metadata has not."""
    change = Driver.change_configuration

    def change_others(driver: Driver, group: RaftGroup, to: ConfChangeV2) -> bool:
        return group_name(group) != "metadata" and change(driver, group, to)

    async def scenario(cluster: NodeCluster) -> None:
        leads = cluster[1].node.state_groups.metadata_replica.group.leader
        asked, needed, goes = (cluster.by_id(id) for id in (leads, *({1, 2, 3} - {leads})))
        monkeypatch.setattr(Driver, "change_configuration", change_others)
        await asked.backend.remove_node(goes.id)
        groups = asked.node.state_groups.groups
        await until(lambda: all(goes.id not in each.group.storage.conf_state.members for each in groups))
        await needed.kill()
        await until(lambda: needed.id in asked.node.unreachable())
        with pytest.raises(Unavailable, match="of the 2 voters of groups-0 this node reaches 1 without node"):
            await asked.backend.forget_node(needed.id)
        monkeypatch.undo()
        await needed.start()
        await until_left(asked, goes.id)

    run_cluster(scenario, tmp_path)


def test_a_replica_that_opens_after_losses_is_one_of_those_that_the_partition_was_made_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the nodes that are left for the voters, and be a majority of too few."""
    opened: dict[tuple[int, int], tuple[int, ...]] = {}
    group_of = Driver.group

    def noted(driver: Driver, raft_group: int, conf_state: ConfState) -> RaftGroup:
        opened.setdefault((driver.node_id, raft_group), conf_state.voters)
        return group_of(driver, raft_group, conf_state)

    monkeypatch.setattr(Driver, "group", noted)

    async def scenario(cluster: NodeCluster) -> None:
        asked, lost, late = (cluster.by_id(id) for id in (1, 3, 4))
        await asked.backend.create_topic("first", 1)
        # As fast as it may be, for then it is not known yet that it is away.
        cluster.split(late.number)
        await asked.backend.create_topic("topic", 4)
        groups = asked.node.metadata.topics["topic"].raft_groups
        founders = dict(zip(groups, asked.node.metadata.topics["topic"].replicas, strict=True))
        await lost.kill()
        await until(lambda: asked.node.unreachable() == [lost.id, late.id])
        await asked.backend.forget_node(lost.id)
        await late.kill()
        cluster.network.heal()
        await late.start()
        for number in range(4):
            await asked.append(b"value", partition=number)
        there = {group: nodes for group, nodes in founders.items() if late.id in nodes}
        await until(lambda: all((late.id, group) in opened for group in there))
        assert any(lost.id in nodes for nodes in there.values())
        assert {group: opened[late.id, group] for group in there} == {
            group: tuple(sorted(nodes)) for group, nodes in there.items()
        }

    run_cluster(scenario, tmp_path, 4)


@pytest.mark.parametrize("after_s", [0, 0.1, 0.25, 0.5])
def test_the_leaving_node_of_two_may_be_killed_and_started_again(tmp_path: Path, after_s: float) -> None:
    """The raft groups that it has not left have no majority without it."""

    async def scenario(cluster: NodeCluster) -> None:
        stays, goes = cluster[1], cluster[2]
        await stays.backend.create_topic("topic", 3)
        values = [b"%d" % number for number in range(30)]
        for number, value in enumerate(values):
            await stays.append(value, partition=number % 3)
        await stays.backend.remove_node(goes.id)
        await asyncio.sleep(after_s)
        await goes.kill()
        starting = asyncio.create_task(goes.start())
        await until_left(stays, goes.id)
        assert await stays.append(b"last") == 10
        assert await stays.values() == [*values[::3], b"last"]
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    run_cluster(scenario, tmp_path, 2)


def test_a_node_of_an_earlier_release_that_leaves_knows_the_commands_of_its_raft_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rolling upgrade is complete for metadata, which counts the nodes that stay."""

    def set_level(level: int) -> None:
        for module in (cluster_search, node_peers):
            monkeypatch.setattr(module, "FEATURE_LEVEL", level)

    async def is_seen(node: ClusterNode, value: int) -> bool:
        """True if the command that sets an offset says what was seen."""
        await node.backend.commit_offsets("group", {AT: OffsetCommit(value)}, set=True)
        topic_id = node.node.metadata.topics["topic"].topic_id
        return node.node.state_groups.offsets_of("group").set_ms("group", topic_id, 0) > 0

    set_level(SEEN_LEVEL - 1)

    async def scenario(cluster: NodeCluster) -> None:
        asked, goes = cluster[1], cluster[3]
        await asked.backend.create_topic("topic", 1)
        set_level(SEEN_LEVEL)
        for node in (cluster[2], asked):
            await node.stop()
            await node.start()
        assert not await is_seen(asked, 1)
        peers = [node.node.peers for node in cluster.nodes.values()]
        for each in peers:
            assert each is not None
            each.stopping = True  # it proposes no change
        await asked.backend.remove_node(goes.id)
        assert asked.node.metadata.feature_level == SEEN_LEVEL
        assert not await is_seen(asked, 2)
        for each in peers:
            assert each is not None
            each.stopping = False
        await until_left(asked, goes.id)
        assert await is_seen(asked, 3)

    run_cluster(scenario, tmp_path)


def test_the_node_that_stays_alone_answers_once_the_other_one_has_left(tmp_path: Path) -> None:
    """Until then that one may have answered changes which are not known here."""

    async def scenario(cluster: NodeCluster) -> None:
        stays, goes = cluster[1], cluster[2]
        await stays.backend.create_topic("topic", 1)
        await stays.backend.remove_node(goes.id)
        await goes.kill()
        asked = ("committed", "describe", "groups", "list topics", "offset ranges")
        answers = await asyncio.gather(*(CALLS[each](stays) for each in asked), return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, Unavailable)
            assert re.match("no leader of .* has answered|no majority: ", str(answer))
        starting = asyncio.create_task(goes.start())
        await until_left(stays, goes.id)
        for each in asked:
            await CALLS[each](stays)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    run_cluster(scenario, tmp_path, 2)


def test_a_node_that_leaves_is_needed_by_partitions_of_other_nodes(tmp_path: Path) -> None:
    """The leader of metadata has no replica of them, and lets nobody go before they do."""

    async def scenario(cluster: NodeCluster) -> None:
        leads = cluster[1].node.state_groups.metadata_replica.group.leader
        asked, other, goes = (cluster[id] for id in (leads, *({1, 2, 3} - {leads})))
        await asked.backend.create_topic("topic", 6, {"replication": "2"})
        replicas = asked.node.metadata.topics["topic"].replicas
        shared = next(at for at, nodes in enumerate(replicas) if leads not in nodes)
        assert await asked.append(b"first", partition=shared) == 0
        assert other.node.peers is not None
        other.node.peers.stopping = True  # it proposes no change
        await asked.backend.remove_node(goes.id)
        await asyncio.sleep(20)
        assert goes.id in await listed(asked)
        await goes.kill()
        other.node.peers.stopping = False
        starting = asyncio.create_task(goes.start())
        await until_left(asked, goes.id)
        assert await other.append(b"last", partition=shared) == 1
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    run_cluster(scenario, tmp_path)


def test_a_node_joins_while_one_that_leaves_is_needed(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        leads = cluster[1].node.state_groups.metadata_replica.group.leader
        asked, other, goes = (cluster.by_id(id) for id in (leads, *({1, 2, 3} - {leads})))
        await asked.backend.create_topic("topic", 6, {"replication": "2"})
        assert other.node.peers is not None
        other.node.peers.stopping = True  # it proposes no change
        await asked.backend.remove_node(goes.id)
        added = await cluster.add()
        assert goes.id in await listed(asked)
        assert await added.append(b"value") == 0
        other.node.peers.stopping = False
        await until_left(asked, goes.id)

    run_cluster(scenario, tmp_path)


def test_a_node_joins_while_one_that_leaves_is_needed_for_good(tmp_path: Path) -> None:
    """The other one with its partitions is lost."""

    async def scenario(cluster: NodeCluster) -> None:
        leads = cluster[1].node.state_groups.metadata_replica.group.leader
        asked, lost, goes = (cluster.by_id(id) for id in (leads, *({1, 2, 3} - {leads})))
        await asked.backend.create_topic("topic", 6, {"replication": "2"})
        for node in (lost, goes):
            assert node.node.peers is not None
            node.node.peers.stopping = True  # it proposes no change
        await asked.backend.remove_node(goes.id)
        await lost.kill()
        await until(lambda: lost.id in asked.node.unreachable())
        assert goes.node.peers is not None
        goes.node.peers.stopping = False
        await asked.backend.forget_node(lost.id)
        added = await cluster.add()
        await until(lambda: added.id in asked.node.state_groups.sinks_replica.group.storage.conf_state.voters)
        told = str(problems(await asked.backend.cluster_status()))
        assert f"node {lost.id} will not come back: there cannot be one any more" in told
        assert f"node {goes.id} was removed, and is a member of raft groups" in told
        # What is lost is given up, and nothing needs the node any more.
        await added.backend.delete_topic("topic")
        await until_left(added, goes.id)
        await goes.kill()
        await added.backend.create_topic("next", 3)
        for partition in range(3):
            assert await added.append(b"value", topic="next", partition=partition) == 0
        assert not [each for each in problems(await asked.backend.cluster_status()) if "raft group" in each]

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("to_leaving", [False, True], ids=["to one that stays", "to the one that leaves"])
def test_the_leadership_of_metadata_moves_while_the_others_are_asked_for_a_leaving_node(
    tmp_path: Path, to_leaving: bool
) -> None:
    """The next leader asks for itself, and what the first one hears then is still true."""

    async def scenario(cluster: NodeCluster) -> None:
        leads = cluster[1].node.state_groups.metadata_replica.group.leader
        asked, other, goes = (cluster.by_id(id) for id in (leads, *({1, 2, 3} - {leads})))
        await asked.backend.create_topic("topic", 6, {"replication": "2"})
        assert asked.node.peers is not None
        departures: Any = asked.node.peers._departures
        call, begun, goes_on = departures._call, asyncio.Event(), asyncio.Event()

        async def call_late(*args: Any) -> Any:
            begun.set()
            answer = await call(*args)
            await goes_on.wait()
            return answer

        async def move(node: ClusterNode, to: ClusterNode) -> None:
            metadata = node.node.state_groups.metadata_replica.group
            await until(lambda: metadata.leads)
            node.node._log.driver.transfer(metadata, to.id)
            await until(lambda: not metadata.leads and metadata.leader not in (NONE, node.id))

        departures._call = call_late
        await asked.backend.remove_node(goes.id)
        await begun.wait()
        await move(asked, goes if to_leaving else other)
        if not to_leaving:  # that one hands over, perhaps to the node that waits for the answer
            assert other.node.peers is not None
            found = other.node.peers._departures._let_go
            await until(lambda: goes.id in found)
        goes_on.set()
        await until_left(other, goes.id)
        await goes.kill()
        await until(lambda: not departures._tasks)
        if other.node.state_groups.metadata_replica.group.leads:
            await move(other, asked)
        for group in (await asked.backend.cluster_status()).groups:
            assert goes.id not in (*group.voters, *group.learners, *group.voters_outgoing)
        assert [await asked.append(b"value", partition=each) for each in range(6)] == [0] * 6

    run_cluster(scenario, tmp_path)


def test_a_removal_waits_until_the_node_that_was_removed_before_has_left(tmp_path: Path) -> None:
    """It may be gone at any time, and is a voter until then."""

    async def scenario(cluster: NodeCluster) -> None:
        first = cluster[1]
        await first.backend.create_topic("topic", 3)
        await until_dispensable(2, first)
        await first.backend.remove_node(2)
        assert await listed(first) == [1, 2, 3]
        await first.backend.remove_node(3)
        assert await listed(first) == [1, 3]

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("has_left", [True, False])
def test_both_nodes_that_were_removed_may_end_at_once(tmp_path: Path, has_left: bool) -> None:
    """The last one is needed until it has left, the first one not at all."""

    async def scenario(cluster: NodeCluster) -> None:
        stays, first, last = cluster[1], cluster[2], cluster[3]
        await stays.backend.create_topic("topic", 3)
        for number in range(9):
            await last.append(b"%d" % number, partition=number % 3)
        for node in (first, last):
            await until_dispensable(node.id, stays)
            await stays.backend.remove_node(node.id)
            if has_left or node is first:
                await until_left(stays, node.id)
        await asyncio.gather(first.kill(), last.kill())
        if not has_left:
            starting = asyncio.create_task(last.start())
            await until_left(stays, last.id)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        assert [await stays.append(b"next", partition=each) for each in range(3)] == [3] * 3
        assert await stays.values(partition=2) == [b"2", b"5", b"8", b"next"]
        assert problems(await stays.backend.cluster_status()) == ()

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("asked", [(1, 1), (1, 2), (2, 3)])
def test_of_two_nodes_that_are_removed_at_once_one_stays(tmp_path: Path, asked: tuple[int, int]) -> None:
    """Each was checked for a cluster with the other one."""

    async def scenario(cluster: NodeCluster) -> None:
        calls = [
            cluster[at].backend.remove_node(cluster[gone].id) for at, gone in zip(asked, (2, 3), strict=True)
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        (refused,) = [each for each in outcomes if each is not None]
        assert isinstance(refused, FailedPrecondition)
        gone, stays = (cluster[2], cluster[3]) if outcomes[0] is None else (cluster[3], cluster[2])
        needed = f"node {stays.id} is needed: raft groups metadata, groups-0, groups-1 and 7 others: node {gone.id}"
        assert str(refused) in (
            f"node {stays.id} stays: node {gone.id} has left since it was checked that the others can do without "
            "it; ask again",
            # The leader may check one that another node was asked to remove again.
            *([f"{needed}, which was removed, has not left yet"] if asked == (1, 2) else []),
        )
        await until_left(stays, gone.id)
        await gone.kill()
        await cluster[1].backend.create_topic("topic", 1)
        # Asked again, it is checked for the cluster that is there.
        await cluster[1].backend.remove_node(stays.id)

    run_cluster(scenario, tmp_path)


def test_a_node_goes_while_another_takes_its_vote(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster.add()
        down, gone, asked = cluster[1], cluster[2], cluster[4]
        await asyncio.sleep(3.0)
        await down.kill()
        await until(lambda: asked.node.unreachable() == [down.id])
        await asyncio.sleep(3.0)
        await asked.backend.remove_node(gone.id)
        await until_left(asked, gone.id)
        await gone.kill()
        await asked.backend.create_topic("topic", 1)

    run_cluster(scenario, tmp_path)


# --- partitions whose replicas have left ----------------------------------------------------------


async def partition_of(cluster: NodeCluster, *node_ids: int) -> int:
    """A partition of a new topic that has replicas on these nodes, with one record."""
    described = await cluster[1].backend.create_topic("topic", 12)
    found = next(each for each in described.partitions if {*each.replicas}.issuperset(node_ids))
    await cluster[1].append(b"value", partition=found.partition)
    return found.partition


def test_a_partition_that_has_lost_its_majority_for_good_is_said_to_have_no_leader(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster.add()
        partition = await partition_of(cluster, 3, 4)
        for node_id in (3, 4):
            await cluster.by_id(node_id).kill()
        left = cluster.by_id(1)
        await until(lambda: left.node.unreachable() == [3, 4])
        for node_id in (3, 4):
            await left.backend.forget_node(node_id)
        await asyncio.sleep(5.0)
        described = (await left.backend.describe_topic("topic")).partitions[partition]
        assert (described.leader, len(described.replicas)) == (-1, 1)
        with pytest.raises(Unavailable, match="no leader of partition"):
            await cluster.by_id(described.replicas[0]).backend.offset_ranges("topic")
        leaderless = [each for each in problems(await left.backend.cluster_status()) if "no leader" in each]
        assert leaderless
        for problem in leaderless:
            assert "nodes 3 and 4 will not come back: there cannot be one any more" in problem
        await left.backend.delete_topic("topic")

        async def well() -> bool:
            return "no leader" not in str(problems(await left.backend.cluster_status()))

        await until(well)

    run_cluster(scenario, tmp_path)


def test_a_replica_that_stays_is_read_like_a_shared_one_until_the_other_has_left(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {"replication": "2"})
        await cluster[1].append(b"value")
        gone, stays = (cluster.by_id(each) for each in cluster[1].node.metadata.topics["topic"].replicas[0])
        await gone.backend.remove_node(gone.id)
        await until(lambda: gone.id not in stays.node.metadata.registered)
        cluster.split(stays.number)
        with pytest.raises(Unavailable, match="no majority: "):
            await stays.fetch(1)
        cluster.network.heal()
        await until_left(stays, gone.id)
        assert await stays.values() == [b"value"]

    run_cluster(scenario, tmp_path)


def test_reads_that_wait_for_a_node_that_leaves_are_answered(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1, {"replication": "2"})
        await cluster[1].append(b"one")
        gone, stays = (cluster.by_id(each) for each in cluster[1].node.metadata.topics["topic"].replicas[0])
        # What the one that leaves confirms comes after its end.
        cluster.network.way(gone.host, stays.host).delays_s = (0.4, 0.4)
        removing = asyncio.create_task(gone.backend.remove_node(gone.id))
        await until(lambda: gone.id not in stays.node.metadata.registered)
        written = await stays.append(b"two")
        assert (await stays.backend.offset_ranges("topic"))[0].end == written + 1
        await removing

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("stuck", ["metadata", "groups-1"])
def test_a_start_that_needs_a_node_that_has_left_says_so_and_recover_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    """The second of two nodes ends before all raft groups are without it. Earlier releases left
    metadata first.
    """
    change = Driver.change_configuration

    def change_others(driver: Driver, group: RaftGroup, to: ConfChangeV2) -> bool:
        held = ("groups-1",) if stuck == "groups-1" else ("groups-1", "partition 1 of topic topic")
        return group_name(group) not in held and change(driver, group, to)

    async def scenario(cluster: NodeCluster) -> None:
        kept, gone = cluster.by_id(1), cluster.by_id(2)
        await kept.backend.create_topic("topic", 4)
        await kept.append(b"value")
        monkeypatch.setattr(Driver, "change_configuration", change_others)
        await kept.backend.remove_node(gone.id)
        metadata = kept.node.state_groups.metadata_replica.group
        await until(lambda: not kept.node.state_groups.groups[0].group.has_peers or stuck == "metadata")
        if stuck == "metadata":
            await kept.backend.create_topic("other", 1)  # its entry says that the removal is committed
        else:
            change(
                kept.node._log.driver,
                metadata,
                ConfChangeV2((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 2),)),
            )
            await until(lambda: not metadata.has_peers)
        await gone.kill()
        await asyncio.sleep(5.0)
        await kept.kill()
        with capture_logs() as logs:
            await kept.begin()
            await asyncio.sleep(5.0)
        (reason,) = [line["reason"] for line in logs if "a node that has left the cluster" in line["event"]]
        assert re.match(
            rf"no leader of {stuck} can be elected without node 2, which left the cluster: .* `pixy cluster recover` "
            r"makes this node the only voter",
            reason,
        )
        assert kept.backend.fault == f"the node is catching up with its cluster: {reason}"
        await kept.stop()
        with stopped_node(kept.disk, tmp_path / str(kept.number)) as node:
            lost = LostMajority(node)
            assert [each.node_id for each in lost.report.lost_nodes] == [2]
            assert stuck in [each.name for each in lost.report.groups if each.voters == (1, 2)]
            assert not any(each.may_lack for each in lost.report.groups), "each entry was confirmed by both"
            await lost.go_on_alone(InlineWorker, bytes(16))
        await kept.start()
        assert await kept.values() == [b"value"]
        for partition in range(4):
            await kept.append(b"next", partition=partition)
        assert {group.voters for group in (await kept.backend.cluster_status()).groups} == {(1,)}
        await kept.stop()
        with (
            stopped_node(kept.disk, tmp_path / str(kept.number)) as node,
            pytest.raises(FailedPrecondition, match="needs no other"),
        ):
            LostMajority(node)

    run_cluster(scenario, tmp_path, 2)
