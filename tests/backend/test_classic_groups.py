"""Groups of Kafka clients at the nodes of a cluster: coordinators that move, what is stored,
offsets that all kinds of clients share, and members of two kinds; on virtual time.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.backend.classic import GroupCommit, GroupDescription
from pixy.classic_groups import (
    GroupCode,
    GroupSync,
    LeavingMember,
)
from pixy.errors import HeldByOtherProtocol, OwnedElsewhere
from pixy.kafka_protocol.consumer import decode_assignment
from tests.backend.group_members import GROUP, GroupNode
from tests.backend.kafka_clients import (
    PARTITION,
    SESSION_MS,
    KafkaClient,
    coordinator,
    groups,
    is_preparing,
)
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow


async def with_topic(cluster: NodeCluster) -> None:
    await cluster[1].backend.create_topic("topic", 3)


def lone_commit(offset: int, metadata: str = "", partition: TopicPartition = PARTITION) -> GroupCommit:
    return GroupCommit("", None, -1, {partition: (offset, metadata)})


async def committed_at(node: ClusterNode, group: str = GROUP) -> dict[int, OffsetCommit]:
    return dict(await node.backend.committed_offsets(group, "topic"))


# --- coordinators ---------------------------------------------------------------------------------


def test_all_nodes_name_the_coordinator_and_the_others_serve_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = await KafkaClient(cluster).start()
        assert client.assigned == {"topic": (0, 1, 2)}
        leader = coordinator(cluster)
        assert leader is not None
        for node in cluster.nodes.values():
            face = node.backend.classic_groups
            assert face.coordinator_of(GROUP) == leader.id
            if node is not leader:
                lost = GroupCode.NOT_COORDINATOR
                assert (await face.join(GROUP, client._join())).code is lost
                assert (await face.sync(GROUP, GroupSync(client.member_id, None, 1))).code is lost
                assert await face.heartbeat(GROUP, client.member_id, None, 1) is lost
                assert (await face.leave(GROUP, [LeavingMember(client.member_id, None)]))[0] is lost
                assert await face.commit(GROUP, lone_commit(1)) == {PARTITION: lost}
                assert (await face.committed(GROUP, None))[0] is lost
                assert (await face.delete_offsets(GROUP, {"topic": [0]}))[0] is lost
                assert (await face.describe(GROUP)).code is lost
                assert await face.delete(GROUP) is lost
                assert GROUP not in [each.group for each in await face.list_groups()]
            assert (await face.join("", client._join())).code is GroupCode.INVALID_GROUP_ID
            assert await face.delete("x" * 256) is GroupCode.INVALID_GROUP_ID

    run_cluster(scenario, tmp_path)


def test_a_killed_coordinator_is_followed_by_one_that_knows_the_group(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = await KafkaClient(cluster).start()
        assert await client.commit(7) is GroupCode.NONE
        before = coordinator(cluster)
        assert before is not None
        await before.kill()
        assert await client.heartbeat() is GroupCode.NONE
        assert coordinator(cluster) is not before
        assert await client.commit(8) is GroupCode.NONE
        assert (client.generation, client.assigned) == (1, {"topic": (0, 1, 2)})
        code, found = await groups(cluster).committed(GROUP, None)
        assert (code, found[PARTITION].offset) == (GroupCode.NONE, 8)

    run_cluster(scenario, tmp_path)


def test_members_that_wait_for_a_rebalance_are_sent_to_the_next_coordinator(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = await KafkaClient(cluster).start()
        newcomer = KafkaClient(cluster, "newcomer")
        joining = asyncio.create_task(newcomer.join())
        await until(lambda: is_preparing(cluster))
        before = coordinator(cluster)
        assert before is not None
        cluster.split(before.number)
        await until(lambda: coordinator(cluster) not in (None, before) and is_preparing(cluster))
        assert not joining.done()
        answers = await asyncio.gather(client.join(), joining)
        assert [(each.code, each.generation) for each in answers] == [(GroupCode.NONE, 2)] * 2
        assert {each.leader for each in answers} == {client.member_id}

    run_cluster(scenario, tmp_path)


def test_members_whose_group_nobody_asks_for_expire_at_the_next_coordinator(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await KafkaClient(cluster).start()
        before = coordinator(cluster)
        assert before is not None
        await before.kill()
        await until(lambda: coordinator(cluster))
        other = next(node for node in cluster.nodes.values() if node is not before)
        state = other.node.state_groups.offsets_of(GROUP)
        assert state.has_members(GROUP)
        await asyncio.sleep(SESSION_MS / 1000 + 3)
        assert not state.has_members(GROUP)
        stored = state.classic(GROUP)
        assert stored is not None
        assert stored.generation == 2

    run_cluster(scenario, tmp_path)


def test_a_coordinator_that_was_cut_off_commits_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = await KafkaClient(cluster).start()
        before = coordinator(cluster)
        assert before is not None
        cluster.split(before.number)
        late = GroupCommit(client.member_id, None, 1, {PARTITION: (5, "")})
        pending = asyncio.create_task(before.backend.classic_groups.commit(GROUP, late))
        await until(lambda: coordinator(cluster) not in (None, before))
        other = await KafkaClient(cluster, "other").start_with(client)
        assert other.generation == 2
        assert await other.commit(9) is GroupCode.NONE
        cluster.network.heal()
        code = (await pending)[PARTITION]
        assert code in (GroupCode.NOT_COORDINATOR, GroupCode.COORDINATOR_NOT_AVAILABLE)
        assert (await committed_at(other.node()))[0].offset == 9

    run_cluster(scenario, tmp_path)


def test_a_node_alone_becomes_a_cluster_under_a_group(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = await KafkaClient(cluster).start()
        assert await client.commit(1) is GroupCode.NONE
        for _ in range(2):
            await cluster.add()
        await until(lambda: cluster[1].node.state_groups.group_of(GROUP).group.has_peers)
        assert await client.heartbeat() is GroupCode.NONE
        assert await client.commit(2) is GroupCode.NONE
        assert (await client.join()).generation == 2
        assert (await committed_at(client.node()))[0].offset == 2

    run_cluster(scenario, tmp_path, 1)


@pytest.mark.parametrize("is_member", [True, False])
def test_a_commit_that_is_late_overtakes_none_at_the_next_coordinator(
    tmp_path: Path, is_member: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = KafkaClient(cluster)
        if is_member:
            await client.start()
        before = coordinator(cluster)
        assert before is not None
        cluster.split(before.number)
        late = GroupCommit(client.member_id, None, client.generation, {PARTITION: (5, "")})
        pending = asyncio.create_task(before.backend.classic_groups.commit(GROUP, late))
        await until(lambda: coordinator(cluster) not in (None, before))
        assert await client.commit(9) is GroupCode.NONE
        cluster.network.heal()
        # Its proposer does not give up at once.
        assert (await pending)[PARTITION] is not GroupCode.NONE
        await asyncio.sleep(20)
        assert (await committed_at(client.node()))[0].offset == 9

    run_cluster(scenario, tmp_path)


# --- offsets --------------------------------------------------------------------------------------


def test_offsets_are_those_of_pixys_own_groups(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        face = groups(cluster)
        other = TopicPartition("topic", 2)
        assert await face.commit(GROUP, lone_commit(3, "OK")) == {PARTITION: GroupCode.NONE}
        (stored,) = (await committed_at(cluster[1])).values()
        assert (stored, stored.acks) == (OffsetCommit(3, "OK"), "")
        await cluster[1].backend.commit_offsets(GROUP, {other: OffsetCommit(4, "")}, set=True)
        code, found = await face.committed(GROUP, None)
        assert (code, {key: each.offset for key, each in found.items()}) == (
            GroupCode.NONE,
            {PARTITION: 3, other: 4},
        )
        code, found = await face.committed(GROUP, {"topic": [1, 2, 9], "none": [0]})
        assert [*found] == [other]
        assert await face.committed("nobody", None) == (GroupCode.NONE, {})

    run_cluster(scenario, tmp_path, 1)


def test_offsets_that_are_not_taken_are_refused_one_by_one(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        offsets = {
            PARTITION: (1, ""),
            TopicPartition("topic", 1): (1, "x" * 4097),
            TopicPartition("topic", 3): (1, ""),
            TopicPartition("none", 0): (1, ""),
            TopicPartition("topic", 2): (-1, ""),
        }
        codes = await groups(cluster).commit(GROUP, GroupCommit("", None, -1, offsets))
        assert list(codes.values()) == [
            GroupCode.NONE,
            GroupCode.OFFSET_METADATA_TOO_LARGE,
            GroupCode.UNKNOWN_TOPIC_OR_PARTITION,
            GroupCode.UNKNOWN_TOPIC_OR_PARTITION,
            GroupCode.OFFSET_OUT_OF_RANGE,
        ]
        assert (await committed_at(cluster[1])).keys() == {0}

    run_cluster(scenario, tmp_path, 1)


def test_who_may_commit(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        face = groups(cluster)
        unknown = GroupCommit("who", None, 3, {PARTITION: (1, "")})
        assert await face.commit(GROUP, unknown) == {PARTITION: GroupCode.GROUP_ID_NOT_FOUND}
        client = await KafkaClient(cluster).start()
        assert await client.commit(1) is GroupCode.NONE
        assert await face.commit(GROUP, unknown) == {PARTITION: GroupCode.UNKNOWN_MEMBER_ID}
        assert await face.commit(GROUP, lone_commit(2)) == {PARTITION: GroupCode.UNKNOWN_MEMBER_ID}
        client.generation = 7
        assert await client.commit(2) is GroupCode.ILLEGAL_GENERATION
        await face.leave(GROUP, [LeavingMember(client.member_id, None)])
        await until(lambda: not cluster[1].node.state_groups.offsets_of(GROUP).has_members(GROUP))
        assert await face.commit(GROUP, lone_commit(2)) == {PARTITION: GroupCode.NONE}

    run_cluster(scenario, tmp_path, 1)


def test_removed_offsets(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await cluster[1].backend.create_topic("other", 1)
        face, other = groups(cluster), TopicPartition("other", 0)
        assert await face.delete_offsets(GROUP, {"topic": [0]}) == (GroupCode.GROUP_ID_NOT_FOUND, {})
        client = await KafkaClient(cluster).start()
        commit = GroupCommit(client.member_id, None, 1, {PARTITION: (1, ""), other: (2, "")})
        await face.commit(GROUP, commit)
        code, codes = await face.delete_offsets(GROUP, {"topic": [0], "other": [0, 1], "none": [0]})
        assert (code, list(codes.values())) == (
            GroupCode.NONE,
            [
                GroupCode.GROUP_SUBSCRIBED_TO_TOPIC,
                GroupCode.NONE,
                GroupCode.UNKNOWN_TOPIC_OR_PARTITION,
                GroupCode.UNKNOWN_TOPIC_OR_PARTITION,
            ],
        )
        assert [*(await face.committed(GROUP, None))[1]] == [PARTITION]

    run_cluster(scenario, tmp_path, 1)


# --- members of two kinds -------------------------------------------------------------------------


def test_kafka_clients_and_pixys_own_consumers_exclude_each_other(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = await KafkaClient(cluster, "kafka").start()
        with pytest.raises(
            HeldByOtherProtocol, match="Kafka clients are members of consumer group group: kafka"
        ):
            await GroupNode(cluster[2]).join()
        ends = [
            node.node.state_groups.group_of(GROUP).group.storage.last_index()
            for node in cluster.nodes.values()
        ]
        with pytest.raises(HeldByOtherProtocol):
            await GroupNode(cluster[1]).join()
        assert ends == [
            node.node.state_groups.group_of(GROUP).group.storage.last_index()
            for node in cluster.nodes.values()
        ], "who is refused writes nothing"
        with pytest.raises(HeldByOtherProtocol):
            await cluster[1].backend.commit_offsets(GROUP, {PARTITION: OffsetCommit(0)}, set=True)
        with pytest.raises(OwnedElsewhere):
            await cluster[1].backend.commit_offsets(GROUP, {PARTITION: OffsetCommit(0)})
        await groups(cluster).leave(GROUP, [LeavingMember(client.member_id, None)])
        state = cluster[2].node.state_groups.offsets_of(GROUP)
        await until(lambda: not state.has_members(GROUP))
        own = await GroupNode(cluster[2]).join()
        await until(lambda: own.owned == [0, 1, 2])
        answer = await KafkaClient(cluster).join()
        assert answer.code is GroupCode.INCONSISTENT_GROUP_PROTOCOL
        assert await groups(cluster).commit(GROUP, lone_commit(1)) == {PARTITION: GroupCode.UNKNOWN_MEMBER_ID}

    run_cluster(scenario, tmp_path)


def test_of_two_kinds_that_come_at_the_same_time_one_is_refused(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = KafkaClient(cluster)
        joining = asyncio.create_task(client.join())
        await until(lambda: client.member_id)
        await asyncio.sleep(1)
        own = await GroupNode(cluster[2]).join()
        answer = await joining
        assert answer.code is GroupCode.INCONSISTENT_GROUP_PROTOCOL
        await until(lambda: own.owned == [0, 1, 2])

    run_cluster(scenario, tmp_path)


# --- lists ----------------------------------------------------------------------------------------


def test_groups_are_listed_described_and_deleted(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        face = groups(cluster)
        await face.commit("simple", lone_commit(3))
        client = await KafkaClient(cluster).start()
        own = await GroupNode(cluster[1], group="own").join()
        await until(lambda: own.owned)
        assert {each[:4] for each in await face.list_groups()} == {
            ("simple", "", "Empty", True),
            (GROUP, "consumer", "Stable", True),
            ("own", "consumer", "Stable", False),
        }
        described = await face.describe(GROUP)
        (member,) = described.members
        assert (described.phase, described.protocol, member.client_id) == ("Stable", "range", "client")
        assert decode_assignment(member.assignment) == {"topic": (0, 1, 2)}
        (member,) = (await face.describe("own")).members
        assert decode_assignment(member.assignment) == {"topic": (0, 1, 2)}
        assert (await face.describe("simple")).phase == "Empty"
        assert await face.describe("none") == GroupDescription("none", phase="Dead", is_known=False)

        assert await face.delete("none") is GroupCode.GROUP_ID_NOT_FOUND
        assert await face.delete(GROUP) is await face.delete("own") is GroupCode.NON_EMPTY_GROUP
        assert await face.delete("simple") is GroupCode.NONE
        await face.leave(GROUP, [LeavingMember(client.member_id, None)])
        assert (await face.describe(GROUP)).phase == "Empty"
        await until(lambda: not cluster[1].node.state_groups.offsets_of(GROUP).has_members(GROUP))
        assert await face.delete(GROUP) is GroupCode.NONE
        assert (await face.describe(GROUP)).phase == "Dead"

    run_cluster(scenario, tmp_path, 1)


def test_pixys_own_lists_have_kafka_clients(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        backend = cluster[1].backend
        client = await KafkaClient(cluster).start()
        assert await backend.list_groups() == {GROUP}
        assert await backend.consumer_group_exists(GROUP)
        assert await backend.list_consumers("topic") == {GROUP: {"client": [0, 1, 2]}}
        assert await backend.list_consumers("other") == {}
        await groups(cluster).leave(GROUP, [LeavingMember(client.member_id, None)])
        await until(lambda: not cluster[1].node.state_groups.offsets_of(GROUP).has_members(GROUP))
        assert await backend.list_groups() == set()
        assert not await backend.consumer_group_exists(GROUP)
        assert await backend.list_consumers("topic") == {}

    run_cluster(scenario, tmp_path, 1)


def test_a_stop_answers_what_waits(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        face = groups(cluster)
        join = KafkaClient(cluster)._join()
        given = await face.join(GROUP, join)
        waiting = asyncio.create_task(face.join(GROUP, replace(join, member_id=given.member_id)))
        await asyncio.sleep(0.5)
        await cluster[1].backend.stop()
        assert (await waiting).code is GroupCode.NOT_COORDINATOR
        assert (await face.join(GROUP, join)).code is GroupCode.COORDINATOR_NOT_AVAILABLE

    run_cluster(scenario, tmp_path, 1)


def test_a_client_that_gives_up_leaves_its_place(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        client = await KafkaClient(cluster).start()
        newcomer = KafkaClient(cluster, "newcomer")
        joining = asyncio.create_task(newcomer.join())
        await until(lambda: newcomer.member_id)
        await asyncio.sleep(0.2)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        assert (await client.join()).generation == 2
        assert await client.heartbeat() is GroupCode.NONE

    run_cluster(scenario, tmp_path, 1)
