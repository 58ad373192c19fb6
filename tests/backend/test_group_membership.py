"""One member: what it is told while its partitions move, and what becomes of calls that fail."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import Process
from pixy.errors import Unavailable
from pixy.proto.state_pb2 import ExpelProcess, GroupsCommand
from tests.backend.group_members import GROUP, GroupNode, membership_at
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import settle, until


class Gate:
    """Commands of one kind at a node: they wait, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, node: ClusterNode, kind: str) -> None:
        self.opened = asyncio.Event()
        self.failures = 0
        self.calls = 0
        self._kind = kind
        self._change: Callable[[str, bytes], Awaitable[Any]] = node.node.commands.change_group
        monkeypatch.setattr(node.node.commands, "change_group", self._gated)

    async def _gated(self, group: str, payload: bytes) -> Any:
        if GroupsCommand.FromString(payload).WhichOneof("command") == self._kind:
            self.calls += 1
            if self.failures:
                self.failures -= 1
                raise Unavailable("no leader")
            await self.opened.wait()
        return await self._change(group, payload)


async def two_members(cluster: NodeCluster) -> tuple[GroupNode, GroupNode]:
    """A member with all partitions, and one that has just joined."""
    await cluster[1].backend.create_topic("topic", 4)
    one = await GroupNode(cluster[1], "topic", "other").join()
    await until(lambda: one.owned == [0, 1, 2, 3])
    return one, await GroupNode(cluster[1], "topic").join()


def test_no_assignment_comes_before_it_is_decided_where_revoked_partitions_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gate = Gate(monkeypatch, cluster[1], "release_partitions")
        one, two = await two_members(cluster)
        await until(lambda: gate.calls)
        told = len(one.told)
        await cluster[1].backend.create_topic("other", 2)
        await settle(200)
        assert len(one.told) == told
        gate.opened.set()
        await until(lambda: two.owned == [2, 3])
        await until(lambda: one.told[-1] == {"topic": [0, 1], "other": [0, 1]})
        assert not any({2, 3} & set(each.get("topic", ())) for each in one.told[told:])

    run_cluster(scenario, tmp_path, 1)


def test_a_release_that_fails_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gate = Gate(monkeypatch, cluster[1], "release_partitions")
        gate.opened.set()
        gate.failures = 3
        _, two = await two_members(cluster)
        await until(lambda: two.owned == [2, 3])
        assert gate.calls == 4

    run_cluster(scenario, tmp_path, 1)


def test_a_member_that_is_put_out_has_nothing_and_joins_anew(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        one, two = await two_members(cluster)
        one.drain_s = None
        await until(lambda: one.revoked)
        before = list(membership_at(node).members)
        process = Process(node.id, node.node.incarnation)
        command = GroupsCommand(expel_process=ExpelProcess(**process._asdict(), groups=[GROUP]))
        await node.node.commands.change_group(GROUP, command.SerializeToString())
        await until(lambda: one.told[-1] == two.told[-1] == {})
        await until(lambda: sorted(one.owned + two.owned) == [0, 1, 2, 3])
        after = list(membership_at(node).members)
        assert len(after) == 2
        assert not {*before} & {*after}
        assert one.ended == 0, "its revocation was cancelled"

    run_cluster(scenario, tmp_path, 1)


def test_a_member_that_cannot_join_at_once_again_tries_it_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        await node.backend.create_topic("topic", 4)
        one = await GroupNode(node).join()
        await until(lambda: one.owned)
        gate = Gate(monkeypatch, node, "join_group")
        gate.opened.set()
        gate.failures = 3
        process = Process(node.id, node.node.incarnation)
        command = GroupsCommand(expel_process=ExpelProcess(**process._asdict(), groups=[GROUP]))
        await node.node.commands.change_group(GROUP, command.SerializeToString())
        await until(lambda: {} in one.told)
        await until(lambda: one.owned == [0, 1, 2, 3])
        assert gate.calls == 4

    run_cluster(scenario, tmp_path, 1)


def test_a_join_that_fails_is_an_error_and_leaves_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gate = Gate(monkeypatch, cluster[1], "join_group")
        gate.failures = 1
        with pytest.raises(Unavailable, match="no leader"):
            await GroupNode(cluster[1]).join()
        assert not await cluster[1].backend.consumer_group_exists(GROUP)

    run_cluster(scenario, tmp_path, 1)


def test_a_join_that_is_under_way_at_the_stop_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        gate = Gate(monkeypatch, cluster[1], "join_group")
        joining = asyncio.create_task(GroupNode(cluster[1]).join())
        await until(lambda: gate.calls)
        await cluster[1].backend.stop()
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining

    run_cluster(scenario, tmp_path, 1)


def test_topics_that_change_while_the_member_joins_anew_are_those_that_it_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        node = cluster[1]
        for name in ("topic", "other"):
            await node.backend.create_topic(name, 2)
        one = await GroupNode(node).join()
        await until(lambda: one.owned)
        gate = Gate(monkeypatch, node, "join_group")
        process = Process(node.id, node.node.incarnation)
        command = GroupsCommand(expel_process=ExpelProcess(**process._asdict(), groups=[GROUP]))
        await node.node.commands.change_group(GROUP, command.SerializeToString())
        await until(lambda: gate.calls)
        subscribing = asyncio.create_task(one.membership.subscribe(["other"]))
        await settle()
        gate.opened.set()
        await subscribing
        await until(lambda: one.told[-1] == {"other": [0, 1]})

    run_cluster(scenario, tmp_path, 1)


def test_a_member_that_has_left_is_told_nothing_more(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one, two = await two_members(cluster)
        await until(lambda: two.owned == [2, 3])
        told = len(one.told)
        await one.membership.leave()
        await one.membership.leave()
        await one.membership.subscribe(["other"])
        await until(lambda: two.owned == [0, 1, 2, 3])
        assert len(one.told) == told
        assert len(membership_at(cluster[1]).members) == 1

    run_cluster(scenario, tmp_path, 1)
