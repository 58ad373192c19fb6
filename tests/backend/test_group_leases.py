"""Leases of members: how they are renewed, and when not."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from pixy.aio.tasks import Tasks
from pixy.backend.embedded.group_leases import GroupLeases
from pixy.cluster import MemberId
from pixy.cluster.log.replica import Replica
from pixy.errors import Unavailable
from tests.backend.group_members import GROUP, GroupNode, membership_at
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.cluster.nodes import Cluster
from tests.fakes.disk import full
from tests.fakes.waiting import settle, until

pytestmark = pytest.mark.slow

STALLED_S = 8.0
"""Time until the members of a node with a stalled disk are put out."""


def members_of(node: ClusterNode) -> set[MemberId]:
    """The members of a node, as it has applied them."""
    return {each for each in membership_at(node).members if each.node_id == node.id}


async def test_a_node_without_peers_has_leases_without_end(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        faults: list[BaseException] = []
        leases = GroupLeases(cluster.node, Tasks(faults.append), lambda _: None)
        lease = leases.of("group")
        leases.hold("group")
        leases.confirmed("group", 0.0)
        assert lease.until == float("inf")
        leases.drop("group")
        leases.stop()
        assert faults == []


def test_a_lease_is_renewed_while_there_is_a_member(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one = await GroupNode(cluster[1]).join()
        other = await GroupNode(cluster[1]).join()
        assert one.membership.lease is other.membership.lease
        await asyncio.sleep(20)
        assert 1.7 - 0.1 <= one.membership.lease.until - cluster[1].clock.monotonic() <= 2.5
        await one.membership.leave()
        await asyncio.sleep(5)
        assert other.may_consume()
        await other.membership.leave()
        await asyncio.sleep(5)
        assert not other.may_consume()

    run_cluster(scenario, tmp_path)


def test_a_lease_counts_from_the_beginning_of_its_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one = await GroupNode(cluster[1]).join()
        node = cluster[1].node
        leases = GroupLeases(node, Tasks(cluster[1].faults.append), lambda _: None)
        lease = leases.of(GROUP)
        assert lease.until < node.monotonic()
        confirm = node.confirm

        async def slow(replicas: Iterable[Replica], timeout: float) -> None:
            await asyncio.sleep(2)
            await confirm(replicas, timeout)

        monkeypatch.setattr(node, "confirm", slow)
        began = node.monotonic()
        leases.hold(GROUP)
        await asyncio.sleep(2.1)
        assert began + 2.5 <= lease.until <= began + 2.6
        assert one.may_consume()
        leases.stop()

    run_cluster(scenario, tmp_path)


def test_members_of_a_node_that_is_behind_leave_and_join_anew(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 2)
        one, two = await GroupNode(cluster[1]).join(), await GroupNode(cluster[2]).join()
        await until(lambda: one.owned and two.owned)
        first = members_of(cluster[1])
        cluster[1].stalling.stall()
        await until(lambda: two.owned == [0, 1])
        assert not one.may_consume()
        assert one.owned == []
        await asyncio.sleep(60)
        assert two.owned == [0, 1], "it comes back when it follows again"
        cluster[1].stalling.resume()
        await until(lambda: one.owned and two.owned)
        assert members_of(cluster[1]).isdisjoint(first)
        assert one.may_consume()

    run_cluster(scenario, tmp_path)


def test_members_of_a_node_with_a_full_disk_leave_and_join_anew(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[2].backend.create_topic("topic", 2)
        one, two = await GroupNode(cluster[1]).join(), await GroupNode(cluster[2]).join()
        await until(lambda: one.owned and two.owned)
        full(cluster[1].disk, "allocate", ".journal")
        while cluster[1].node.blocked is None:
            await cluster[2].append(bytes(200_000))
        await until(lambda: two.owned == [0, 1])
        assert one.owned == []
        await cluster[2].append(b"the others go on")
        cluster[1].disk.heal()
        await until(lambda: one.owned and two.owned)
        assert one.may_consume()

    run_cluster(scenario, tmp_path)


def test_members_of_many_groups_are_given_up_together(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        state_group = cluster[1].node.state_groups.group_of(GROUP)
        names = [f"group-{number}" for number in range(300)]
        same = [name for name in names if cluster[1].node.state_groups.group_of(name) is state_group]
        assert len(same) > 20
        for name in same:
            await GroupNode(cluster[1], group=name).join()
        cluster[1].stalling.stall()
        await asyncio.sleep(STALLED_S)
        assert not any(membership_at(cluster[2], name).members for name in same)
        cluster[1].stalling.resume()
        await until(lambda: all(membership_at(cluster[2], name).members for name in same))

    run_cluster(scenario, tmp_path)


def test_a_member_that_joins_as_the_disk_stalls_is_given_up_too(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 2)
        two = await GroupNode(cluster[2]).join()
        await until(lambda: two.owned == [0, 1])
        cluster[1].stalling.stall()
        joining = asyncio.create_task(GroupNode(cluster[1]).join())
        await until(lambda: len(membership_at(cluster[2]).members) == 2)
        await asyncio.sleep(2 * STALLED_S)
        assert len(membership_at(cluster[2]).members) == 1
        assert two.owned == [0, 1]
        cluster[1].stalling.resume()
        await asyncio.gather(joining, return_exceptions=True)

    run_cluster(scenario, tmp_path)


def test_members_stay_while_no_leader_confirms_them(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one = await GroupNode(cluster[1]).join()
        first = members_of(cluster[1])
        for number in (1, 2, 3):
            cluster.split(number)
        await asyncio.sleep(30)
        cluster.network.heal()
        await until(one.may_consume)
        assert members_of(cluster[1]) == first

    run_cluster(scenario, tmp_path)


def test_a_lease_without_a_confirmation_ends_and_goes_on_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one = await GroupNode(cluster[1]).join()
        node = cluster[1].node
        failed = 0

        async def refused(*_: object) -> None:
            nonlocal failed
            failed += 1
            raise Unavailable("no leader")

        monkeypatch.setattr(node, "confirm", refused)
        await asyncio.sleep(4)
        assert failed >= 4
        assert not one.may_consume()
        monkeypatch.undo()
        await asyncio.sleep(1)
        await settle()
        assert one.may_consume()

    run_cluster(scenario, tmp_path)
