"""Leases of members: how they are renewed, and when not."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from pixy.backend.group_leases import GroupLeases
from pixy.cluster.replica import Replica
from pixy.errors import Unavailable
from pixy.tasks import Tasks
from tests.backend.group_members import GROUP, GroupNode
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.cluster.nodes import Cluster
from tests.fakes.waiting import settle


async def test_a_node_without_peers_has_leases_without_end(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        faults: list[BaseException] = []
        leases = GroupLeases(cluster.node, Tasks(faults.append))
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
        leases = GroupLeases(node, Tasks(cluster[1].faults.append))
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
