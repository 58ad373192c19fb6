"""The coordinator of classic groups of a node: what it stores, what it answers when that fails, and
what it keeps in memory.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.classic_groups import (
    ClassicOptions,
    GroupCode,
    GroupJoin,
    GroupSync,
    Joined,
    LeavingMember,
    MemberProtocol,
)
from pixy.cluster.consumer_groups.classic_coordinator import ClassicCoordinator
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.replicas.state_groups import StateGroups
from pixy.cluster.state import CLASSIC_LEVEL, ClusterLimits, GroupsState
from pixy.config import LimitsConfig
from pixy.errors import (
    FailedPrecondition,
    HeldByOtherProtocol,
    MessageTooLarge,
    PixyError,
    ResourceExhausted,
    Unavailable,
)
from pixy.proto.state_pb2 import GroupsCommand
from tests.cluster.nodes import Cluster
from tests.fakes.waiting import until

JOIN = GroupJoin(
    "",
    None,
    "client",
    "host",
    "consumer",
    [MemberProtocol("range", b"topics")],
    6000,
    60_000,
    takes_member_id=False,
)
OPTIONS = ClassicOptions(initial_delay_ms=0)


class Stored:
    """A coordinator whose proposals are seen.

    Attributes:
        commands: what was proposed.
        failing: the answer of proposals that are not passed on.
    """

    def __init__(self, cluster: Cluster, options: ClassicOptions = OPTIONS, **limits: int) -> None:
        self.cluster = cluster
        self.commands: list[GroupsCommand] = []
        self.failing: PixyError | None = None
        node = cluster.node
        self.coordinator = ClassicCoordinator(
            node,
            self._propose,
            ClusterLimits(LimitsConfig(**limits), node.metadata, lambda: CLASSIC_LEVEL),
            options,
            lambda count: bytes([len(self.commands)]) * count,
        )

    def _propose(self, replica: StateReplica, payload: bytes, done: Callable[[Any], None]) -> None:
        self.commands.append(GroupsCommand.FromString(payload))
        if self.failing is not None:
            done(self.failing)
        else:
            self.cluster.node._proposals.propose_and_tell(replica, payload, done)

    @property
    def state(self) -> GroupsState:
        return self.cluster.node.state_groups.offsets_of("g")

    async def stable(self) -> Joined:
        joined = await self.coordinator.join("g", JOIN)
        sync = GroupSync(joined.member_id, None, joined.generation, [(joined.member_id, b"all")])
        assert (await self.coordinator.sync("g", sync)).assignment == b"all"
        return joined


async def test_each_generation_is_stored_twice(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster)
        joined = await stored.stable()
        commands = [each.set_classic_group for each in stored.commands]
        assert [(each.record.generation, each.record.is_assigned) for each in commands] == [
            (1, False),
            (1, True),
        ]
        assert [(each.group, each.term) for each in commands] == [("g", 0)] * 2, "of one node"
        assert all(each.max_groups and each.max_offset_bytes and each.timestamp_ms for each in commands)
        assert await stored.coordinator.heartbeat("g", joined.member_id, None, 1) is GroupCode.NONE
        await stored.coordinator.stop()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("no room"), GroupCode.COORDINATOR_NOT_AVAILABLE),
        (FailedPrecondition("another term"), GroupCode.NOT_COORDINATOR),
        (HeldByOtherProtocol("own"), GroupCode.INCONSISTENT_GROUP_PROTOCOL),
        (ResourceExhausted("too many"), GroupCode.GROUP_MAX_SIZE_REACHED),
        (MessageTooLarge("too large"), GroupCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_cannot_be_stored_is_nobodys_answer(
    tmp_path: Path, error: PixyError, code: GroupCode
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster)
        stored.failing = error
        assert (await stored.coordinator.join("g", JOIN)).code is code
        assert stored.coordinator.known("g") is None
        stored.failing = None
        joined = await stored.stable()
        assert joined.generation == 1
        stored.failing = error
        leading = replace(JOIN, member_id=joined.member_id)
        assert (await stored.coordinator.join("g", leading)).code is code
        stored.failing = None
        # As it was stored.
        assert await stored.coordinator.heartbeat("g", joined.member_id, None, 1) is GroupCode.NONE
        await stored.coordinator.stop()


async def test_nobody_is_put_out_for_a_pause_of_the_process(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster)
        joined = await stored.stable()
        coordinator = stored.coordinator
        coordinator._ticked_at -= 100
        coordinator._tick()
        assert await coordinator.heartbeat("g", joined.member_id, None, 1) is GroupCode.NONE
        for _ in range(20):
            coordinator._ticked_at -= 0.3
            coordinator._tick()
        await until(lambda: not stored.state.has_members("g"))
        await coordinator.stop()


async def test_groups_without_members_are_not_kept_in_memory(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster)
        coordinator = stored.coordinator
        assert await coordinator.heartbeat("h", "who", None, 1) is GroupCode.UNKNOWN_MEMBER_ID
        assert (
            await coordinator.join("h", replace(JOIN, member_id="who"))
        ).code is GroupCode.UNKNOWN_MEMBER_ID
        joined = await stored.stable()
        assert coordinator.names_of(cluster.node.state_groups.group_of("g")) == ["g"]
        assert await coordinator.leave("g", [LeavingMember(joined.member_id, None)]) == (
            GroupCode.NONE,
            [GroupCode.NONE],
        )
        await until(lambda: coordinator.known("g") is None)
        assert (await coordinator.join("g", JOIN)).generation == 3
        await coordinator.stop()


async def test_groups_in_memory_are_limited(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster, max_groups=1)
        await stored.stable()
        refused = await stored.coordinator.join("h", JOIN)
        assert refused.code is GroupCode.GROUP_MAX_SIZE_REACHED
        await stored.coordinator.stop()


async def test_nothing_is_served_before_all_nodes_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster)
        with monkeypatch.context() as patch:
            patch.setattr(StateGroups, "feature_level", CLASSIC_LEVEL - 1)
            patch.setattr(StateGroups, "is_lone", False)
            assert (await stored.coordinator.join("g", JOIN)).code is GroupCode.COORDINATOR_NOT_AVAILABLE
        assert (await stored.coordinator.join("g", JOIN)).code is GroupCode.NONE
        await stored.coordinator.stop()


async def test_a_start_loads_groups_with_members(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster)
        await stored.stable()
        await stored.coordinator.stop()
        other = Stored(cluster)
        other.coordinator.look()
        await until(lambda: other.coordinator.known("g") is not None)
        await other.coordinator.stop()


async def test_a_drain_keeps_nobody_waiting_and_takes_commits(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster)
        coordinator, joined = stored.coordinator, await stored.stable()
        newcomer = asyncio.create_task(coordinator.join("g", JOIN))
        await until(lambda: coordinator._waiting)
        coordinator.begin_drain()
        stopping = GroupCode.COORDINATOR_NOT_AVAILABLE
        assert (await newcomer).code is stopping
        assert (await coordinator.join("g", JOIN)).code is stopping
        assert (await coordinator.sync("g", GroupSync(joined.member_id, None, 1))).code is stopping
        assert await coordinator.heartbeat("g", joined.member_id, None, 1) is stopping
        group = await coordinator.group("g")
        assert (
            group.why_no_commit(joined.member_id, None, 1, coordinator.now_ms(), named=True) is GroupCode.NONE
        )
        codes = await coordinator.leave("g", [LeavingMember(joined.member_id, None)])
        assert codes == (GroupCode.NONE, [GroupCode.NONE])
        await coordinator.stop()


async def test_a_request_whose_client_is_gone_is_forgotten(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        stored = Stored(cluster, replace(OPTIONS, initial_delay_ms=60_000))
        joining = asyncio.create_task(stored.coordinator.join("g", JOIN))
        await until(lambda: stored.coordinator._waiting)
        joining.cancel()
        await asyncio.wait({joining})
        assert not stored.coordinator._waiting
        await stored.coordinator.stop()
