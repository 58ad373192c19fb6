"""The coordinator of a node: what it proposes, how much at a time, and again after a failure."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import MemberId, Membership, Process
from pixy.cluster.consumer_groups.group_coordinator import GroupCoordinator
from pixy.cluster.consumer_groups.group_decisions import needed_target
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.replicas.state_groups import GROUPS_COUNT
from pixy.cluster.state.groups import groups_index
from pixy.cluster.state.topic import Topic
from pixy.errors import Unavailable
from pixy.proto.state_pb2 import GroupsCommand
from tests.cluster.nodes import Cluster, copy_of
from tests.fakes.waiting import until

# Of one state group.
NAMES = [name for name in map("g{}".format, range(5000)) if not groups_index(name, GROUPS_COUNT)][:250]


class Proposals:
    """Proposals of a keeper to the groups of a node, which has none of its own any more.

    Attributes:
        commands: what was proposed.
        failing: answer proposals with an error, and do not pass them on.
        heard_at, starts: see `GroupCoordinator`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.commands: list[GroupsCommand] = []
        self.failing = False
        self.heard_at: dict[int, float | None] = {}
        self.starts: dict[int, int] = {}
        cluster.node._group_coordinator.stop()
        own = Process(cluster.node.node_id, cluster.node.incarnation)
        self.keeper = GroupCoordinator(
            cluster.node.state_groups, own, self._propose, lambda: self.heard_at, lambda: self.starts
        )
        cluster.node._reactions._group_coordinator = self.keeper

    def _propose(self, replica: StateReplica, payload: bytes, done: Callable[[Any], None]) -> None:
        self.commands.append(GroupsCommand.FromString(payload))
        if self.failing:
            asyncio.get_running_loop().call_soon(done, Unavailable("no room"))
        else:
            self._cluster.node._proposals.propose_and_tell(replica, payload, done)

    def settled(self, *names: str) -> bool:
        states = self._cluster.node.state_groups
        return all(states.offsets_of(name).membership(name).settled for name in names)


def owners(cluster: Cluster, group: str, topic: str = "topic") -> list[MemberId | None]:
    """Owners of the partitions of a topic."""
    topic_id = cluster.node.metadata.topics[topic].topic_id
    membership = cluster.node.state_groups.offsets_of(group).membership(group)
    return list(membership.topics[topic_id].owners) if topic_id in membership.topics else []


async def test_changes_of_one_iteration_make_one_target(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic(partitions=4)
        proposals = Proposals(cluster)
        joined = await asyncio.gather(*(cluster.join("g0", "topic") for _ in range(2)))
        await until(lambda: proposals.settled("g0"))
        assert len(proposals.commands) == 1
        assert sorted(map(str, owners(cluster, "g0"))) == sorted(map(str, joined * 2))


@pytest.mark.slow
async def test_targets_of_many_groups_come_in_pieces(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic(partitions=2)
        await cluster.create_topic("large", 1500)
        proposals = Proposals(cluster)
        proposals.failing = True
        for name in NAMES[:100]:
            await cluster.join(name, "topic")
        for name in NAMES[100:103]:
            await cluster.join(name, "large")
        await until(lambda: len(proposals.commands) > 10)
        proposals.failing = False
        proposals.commands.clear()
        await until(lambda: proposals.settled(*NAMES[:103]))
        pieces = [
            [len(each.topics[0].owners) for each in command.set_targets.targets]
            for command in proposals.commands
        ]
        assert max(map(len, pieces)) == 50
        assert max(map(sum, pieces)) <= 2000 + 1500


async def test_the_target_of_a_group_on_many_topics_is_found_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"t{number}" for number in range(8)]
    steps, searches, decide = 0, 0, GroupCoordinator._decide

    def decided(keeper: GroupCoordinator) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            keeper.topic_changed(topics[-1])
        decide(keeper)

    def found(membership: Membership, present: Mapping[str, Topic]) -> Any:
        nonlocal searches
        searches += 1
        # The last topic is new during the first search.
        return needed_target(
            membership, {name: present[name] for name in (topics if searches > 1 else topics[:-1])}
        )

    monkeypatch.setattr("pixy.cluster.consumer_groups.group_coordinator._STEPS_PER_ITERATION", 3)
    monkeypatch.setattr("pixy.cluster.consumer_groups.group_coordinator.needed_target", found)
    monkeypatch.setattr(GroupCoordinator, "_decide", decided)
    async with Cluster(tmp_path / "data").running() as cluster:
        for name in topics:
            await cluster.create_topic(name)
        joined = await cluster.join("g0", *topics)
        await until(lambda: owners(cluster, "g0", topics[-1]))
        assert (steps >= 16, searches) == (True, 2)
        assert [owners(cluster, "g0", name) for name in topics] == [[joined]] * 8


async def test_a_target_that_was_computed_for_another_generation_is_computed_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic(partitions=2)
        proposals = Proposals(cluster)
        first = await cluster.join("g0", "topic")
        await until(lambda: proposals.settled("g0"))
        # The topic grows, and somebody joins in front of the target for that.
        joining = asyncio.create_task(cluster.join("g0", "topic"))
        await asyncio.sleep(0)
        await cluster.node.commands.alter_topic("topic", 4, {})
        second = await joining
        await until(lambda: proposals.settled("g0"))
        await until(lambda: len(owners(cluster, "g0")) == 4)
        assert {*owners(cluster, "g0")} == {first, second}


@pytest.mark.slow
async def test_a_start_puts_out_the_members_of_the_process_before(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        for name in NAMES:
            await cluster.join(name, "topic")
        copy = copy_of(cluster.directory, "killed")
    async with Cluster(copy).running() as again:
        state = again.node.state_groups.offsets_of(NAMES[0])
        before = Process(again.node.node_id, again.node.incarnation - 1)
        await until(lambda: not state.groups_of(before))
        joined = await again.join(NAMES[0], "topic")
        await until(lambda: owners(again, NAMES[0]) == [joined])


@pytest.mark.slow
async def test_expulsions_are_proposed_in_pieces_and_again_after_a_failure(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        for name in NAMES:
            await cluster.join(name)
        proposals = Proposals(cluster)
        state = cluster.node.state_groups.offsets_of(NAMES[0])
        ended = Process(cluster.node.node_id, cluster.node.incarnation)
        # As if this were the next start.
        proposals.keeper._own = ended._replace(incarnation=ended.incarnation + 1)
        proposals.failing = True
        proposals.keeper.tick()
        proposals.keeper.tick()
        await until(lambda: len(proposals.commands) == 2)
        proposals.failing = False
        await until(lambda: not state.processes())
        sizes = [len(command.expel_process.groups) for command in proposals.commands]
        assert sizes[0] == sizes[1] == 200
        assert sizes[-2:] == [200, 50]
        assert {command.expel_process.term for command in proposals.commands} == {0}


async def test_a_silent_process_is_put_out_in_the_term_of_the_leader(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        proposals = Proposals(cluster)
        other = MemberId(7, 1, 1)
        await cluster.join("g0", "topic", member_id=other)
        state = cluster.node.state_groups.offsets_of("g0")
        proposals.heard_at = {7: 0.0}
        keeper = proposals.keeper
        for _ in range(12):
            keeper._ticked_at -= 0.3
            keeper.tick()
        await until(lambda: not state.processes())
        (expelled,) = [each.expel_process for each in proposals.commands if each.HasField("expel_process")]
        assert expelled.term == cluster.node.state_groups.group_of("g0").group.term > 0


async def test_the_members_of_a_process_end_when_its_node_has_come_as_a_later_start(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        proposals = Proposals(cluster)
        before, after = MemberId(7, 1, 1), MemberId(7, 2, 1)
        for member_id in (before, after):
            await cluster.join("g0", "topic", member_id=member_id)
        proposals.keeper.tick()
        await until(lambda: proposals.settled("g0"))
        assert before in cluster.node.state_groups.offsets_of("g0").membership("g0").members
        proposals.starts = {7: 2}  # which metadata does not know
        proposals.keeper.tick()
        await until(lambda: owners(cluster, "g0") == [after])
        (expelled,) = [each.expel_process for each in proposals.commands if each.HasField("expel_process")]
        assert (expelled.incarnation, expelled.term) == (1, 0)
        proposals.keeper.tick()
        assert proposals.keeper._told == set(), "nothing is remembered of processes that are gone"


async def test_nothing_is_proposed_after_the_stop(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        proposals = Proposals(cluster)
        proposals.keeper.stop()
        await cluster.join("g0", "topic")
        proposals.keeper.topic_changed("topic")
        proposals.keeper.tick()
        await cluster.settle()
        assert proposals.commands == []
