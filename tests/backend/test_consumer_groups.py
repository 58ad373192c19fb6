"""Consumer groups with members at several nodes: owners, fences, leases, on virtual time."""

import asyncio
from pathlib import Path

import pytest

from pixy.backend import TopicPartition
from pixy.backend.protocol import Owner
from pixy.errors import OffsetsSet, OwnedElsewhere, Unavailable
from tests.backend.group_members import GROUP, GroupNode, commit, committed, membership_at, owners
from tests.cluster.node_clusters import ClusterNode, NodeCluster, leaders, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)


async def with_topic(cluster: NodeCluster, partitions: int = 6) -> None:
    await cluster[1].backend.create_topic("topic", partitions)


async def joined(cluster: NodeCluster, *numbers: int, drain_s: float | None = 0.0) -> list[GroupNode]:
    """Members at these nodes, each of which has its partitions."""
    members: list[GroupNode] = []
    for number in numbers:
        members.append(await GroupNode(cluster[number], drain_s=drain_s).join())
        await until(lambda: is_shared(members))
    return members


def is_shared(members: list[GroupNode], partitions: int = 6) -> bool:
    """True if each partition has one owner, and all members have as many."""
    found = owners(*members)
    return (
        list(found) == list(range(partitions))
        and all(len(each) == 1 for each in found.values())
        and max(len(each.owned) for each in members) - min(len(each.owned) for each in members) <= 1
    )


def coordinator_of(cluster: NodeCluster, group: str = GROUP) -> ClusterNode:
    """The node that leads the state group of the group."""
    return cluster.by_id(cluster[1].node.state_groups.group_of(group).group.leader)


# --- owners ---------------------------------------------------------------------------------------


def test_members_at_all_nodes_share_the_partitions(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two, three = await joined(cluster, 1, 2, 3)
        assert [len(each.owned) for each in (one, two, three)] == [2, 2, 2]
        # Joining has moved only what moves, and nothing twice.
        assert [sum(len(each["topic"]) for each in member.revoked) for member in (one, two, three)] == [
            4,
            1,
            0,
        ]
        found = {node: membership_at(node) for node in cluster.nodes.values()}
        assert len({each.generation for each in found.values()}) == 1

    run_cluster(scenario, tmp_path)


def test_each_partition_is_owned_where_it_is_led_if_all_nodes_have_members(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        members = [await GroupNode(node).join() for node in cluster.nodes.values()]
        await with_topic(cluster)
        await until(lambda: is_shared(members))
        topic = cluster[1].node.metadata.topics["topic"]
        for member in members:
            assert {topic.replicas[partition][0] for partition in member.owned} == {member.node.id}
            assert member.revoked == []

    run_cluster(scenario, tmp_path)


def test_any_node_tells_of_groups_members_and_owners(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        assert await cluster[3].backend.partition_owner(GROUP, TOPIC) is None
        one, two = await joined(cluster, 1, 2)
        owner = one if 0 in one.owned else two
        for node in cluster.nodes.values():
            backend = node.backend
            assert await backend.list_groups() == {GROUP}
            assert await backend.consumer_group_exists(GROUP)
            assert await backend.list_consumers("topic") == {
                GROUP: {"client-1": one.owned, "client-2": two.owned}
            }
            assert await backend.partition_owner(GROUP, TOPIC) == Owner(
                f"client-{owner.node.number}", owner.node.id
            )
            others = {cluster[1].id, cluster[2].id} - {node.id}
            assert backend.other_owners(GROUP, "topic") == sorted(others)
            assert backend.other_owners("other", "topic") == backend.other_owners(GROUP, "other") == ()

    run_cluster(scenario, tmp_path)


def test_partitions_that_move_are_drained_and_the_others_never_pause(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        (one,) = await joined(cluster, 1)
        one.drain_s = 1.0
        began = asyncio.get_running_loop().time()
        two = await GroupNode(cluster[2]).join()
        await until(lambda: one.revoked)
        moving = one.revoked[0]["topic"]
        assert len(moving) == 3
        assert one.owned == [0, 1, 2, 3, 4, 5]
        assert two.owned == []
        await until(lambda: two.owned)
        assert asyncio.get_running_loop().time() - began >= 1.0
        assert one.ended == 1
        assert two.owned == moving
        assert one.told[1:] == [{"topic": [each for each in range(6) if each not in moving]}]

    run_cluster(scenario, tmp_path)


def test_a_partition_that_is_to_stay_after_all_is_kept(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        (one,) = await joined(cluster, 1)
        one.drain_s = 1.0
        two = await GroupNode(cluster[2]).join()
        await until(lambda: one.revoked)
        await two.membership.leave()
        await until(lambda: one.ended)
        await until(lambda: len(one.told) == 2)
        # The assignment says that the revocation is over.
        assert one.told[1] == {"topic": [0, 1, 2, 3, 4, 5]}
        assert two.owned == []
        await asyncio.sleep(5)
        assert len(one.told) == 2

    run_cluster(scenario, tmp_path)


def test_a_member_that_leaves_frees_its_partitions_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two, three = await joined(cluster, 1, 2, 3)
        kept = {each: (list(each.owned), list(each.revoked)) for each in (one, three)}
        await two.membership.leave()
        told = len(two.told)
        await until(lambda: is_shared([one, three]))
        for each, (owned, revoked) in kept.items():
            assert set(owned) <= set(each.owned)
            assert each.revoked == revoked
        assert len(two.told) == told

    run_cluster(scenario, tmp_path)


def test_other_topics_are_told_and_unsubscribed_ones_are_free(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await cluster[1].backend.create_topic("other", 2)
        one, two = await joined(cluster, 1, 2)
        await one.membership.subscribe(["other"])
        await until(lambda: one.told[-1] == {"other": [0, 1]})
        await until(lambda: two.owned == [0, 1, 2, 3, 4, 5])
        listed = await cluster[3].backend.list_consumers("topic")
        assert listed == {GROUP: {"client-2": [0, 1, 2, 3, 4, 5]}}

    run_cluster(scenario, tmp_path)


def test_new_partitions_and_topics_are_shared(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster, 2)
        members = [await GroupNode(cluster[number], "topic", "later").join() for number in (1, 2)]
        await until(lambda: is_shared(members, 2))
        before, revoked = [list(each.owned) for each in members], [list(each.revoked) for each in members]
        await cluster[3].backend.alter_topic("topic", partitions=5)
        await until(lambda: is_shared(members, 5))
        assert [set(owned) <= set(each.owned) for owned, each in zip(before, members, strict=True)] == [
            True
        ] * 2
        await cluster[2].backend.create_topic("later", 2)
        await until(lambda: all(len(each.told[-1].get("later", ())) == 1 for each in members))
        assert [each.revoked for each in members] == revoked

    run_cluster(scenario, tmp_path)


def test_a_deleted_topic_goes_and_one_of_its_name_comes_anew(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster, 2)
        members = [await GroupNode(cluster[number]).join() for number in (1, 2)]
        await until(lambda: is_shared(members, 2))
        await cluster[3].backend.delete_topic("topic")
        await cluster[3].backend.create_topic("topic", 4)
        await until(lambda: is_shared(members, 4))
        assert [{} in each.told for each in members] == [True, True]
        states = [node.node.state_groups.offsets_of(GROUP) for node in cluster.nodes.values()]
        await until(lambda: all(len(state.topic_ids()) == 1 for state in states))

    run_cluster(scenario, tmp_path)


# --- nodes that go --------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinates", [True, False])
def test_partitions_of_a_killed_node_are_owned_elsewhere_within_five_seconds(
    tmp_path: Path, coordinates: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await asyncio.sleep(5)  # each state group has its preferred leader
        members = await joined(cluster, 1, 2, 3)
        coordinator = coordinator_of(cluster)
        gone = next(each for each in members if (each.node is coordinator) is coordinates)
        left = [each for each in members if each is not gone]
        kept, revoked = [list(each.owned) for each in left], [list(each.revoked) for each in left]
        loop = asyncio.get_running_loop()
        began = loop.time()
        killing = asyncio.create_task(gone.node.kill())
        await until(lambda: is_shared(left))
        assert 2.5 <= loop.time() - began <= 5
        assert [set(owned) <= set(each.owned) for owned, each in zip(kept, left, strict=True)] == [True, True]
        assert [each.revoked for each in left] == revoked
        await killing

    run_cluster(scenario, tmp_path)


def test_a_node_that_stops_in_good_order_gives_up_its_partitions_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        stopping = asyncio.create_task(cluster[2].stop())
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: is_shared([one]))
        assert loop.time() - began < 1
        assert two.told[-1] != {}, "who stops is not told"
        await stopping

    run_cluster(scenario, tmp_path)


def test_members_of_a_process_that_has_started_again_go_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, _ = await joined(cluster, 1, 2)
        loop = asyncio.get_running_loop()
        killing = asyncio.create_task(cluster[2].kill())
        await asyncio.sleep(0)
        await killing
        before = loop.time()
        await cluster[2].start()
        await until(lambda: is_shared([one]))
        assert loop.time() - before < 2
        assert await cluster[2].backend.list_consumers("topic") == {GROUP: {"client-1": one.owned}}

    run_cluster(scenario, tmp_path)


def test_members_of_a_node_that_has_left_go_and_it_gets_no_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        await until(lambda: all(min(each) > 0 for each in leaders(list(cluster.nodes.values()))))
        await cluster[1].backend.remove_node(cluster[2].id)
        await until(lambda: is_shared([one]))
        await until(lambda: two.told[-1] == {})
        with pytest.raises(Unavailable, match="removed from the cluster: consume at another one"):
            await GroupNode(cluster[2]).join()
        await asyncio.sleep(10)
        assert is_shared([one])
        assert one.owned == [0, 1, 2, 3, 4, 5]

    run_cluster(scenario, tmp_path)


def test_a_removed_node_commits_before_others_own_its_partitions(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        two.drain_s = 4.0
        mine, moved = two.owned, len(one.told)
        await cluster[1].backend.remove_node(cluster[2].id)
        await until(lambda: two.revoked)
        assert two.revoked == [{"topic": mine}]
        await asyncio.sleep(3)
        assert two.may_consume()
        for partition in mine:
            await commit(two.node, 7, partition)
        assert len(one.told) == moved
        await until(lambda: is_shared([one]))
        assert [await committed(cluster[1], partition) for partition in mine] == [7] * len(mine)
        assert two.ended == 1
        assert two.told[-1] == {}

    run_cluster(scenario, tmp_path)


def test_a_removed_node_that_does_not_leave_its_groups_is_put_out(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await asyncio.sleep(5)  # each state group has its preferred leader
        one, two = await joined(cluster, 1, 2)
        two.drain_s = None
        began = asyncio.get_running_loop().time()
        await cluster[1].backend.remove_node(cluster[2].id)
        await until(lambda: is_shared([one]))
        assert 5.0 < asyncio.get_running_loop().time() - began < 6.0
        await until(lambda: two.told[-1] == {})
        assert two.ended == 0

    run_cluster(scenario, tmp_path)


def test_a_forgotten_node_that_is_cut_off_has_stopped_before_others_own_its_partitions(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        cluster.split(2)
        await until(lambda: not cluster[1].node._is_reachable(two.node.id))
        assert two.may_consume()
        await cluster[1].backend.forget_node(two.node.id)
        while not is_shared([one]):
            assert not {*one.owned} & {*two.owned} or not two.may_consume()
            await asyncio.sleep(0.02)
        assert not two.may_consume()

    run_cluster(scenario, tmp_path)


def test_a_new_leader_of_the_state_group_goes_on_with_the_same_generation(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await asyncio.sleep(5)  # each state group has its preferred leader
        coordinator = coordinator_of(cluster)
        numbers = [number for number, node in cluster.nodes.items() if node is not coordinator]
        one, two = await joined(cluster, *numbers)
        before, told = membership_at(one.node), (len(one.told), len(two.told))
        killing = asyncio.create_task(coordinator.kill())
        replica = one.node.node.state_groups.group_of(GROUP)
        await until(lambda: replica.group.leader in (one.node.id, two.node.id))
        await asyncio.sleep(8)
        assert membership_at(one.node) == before
        assert (len(one.told), len(two.told)) == told
        assert one.may_consume()
        assert two.may_consume()
        await commit(one.node, 7, one.owned[0])
        await killing

    run_cluster(scenario, tmp_path)


# --- leases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_member_that_is_cut_off_hands_out_nothing_before_others_own_its_partitions(
    tmp_path: Path, number: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await asyncio.sleep(5)
        members = await joined(cluster, 1, 2, 3)
        await asyncio.sleep(3)
        assert all(each.may_consume() for each in members)
        cut_off = members[number - 1]
        others = [each for each in members if each is not cut_off]
        owned, told = list(cut_off.owned), len(cut_off.told)
        cluster.split(number)
        await until(lambda: not cut_off.may_consume() or set(owned) & {*others[0].owned, *others[1].owned})
        assert not cut_off.may_consume()
        assert cut_off.owned == owned, "it does not know yet"
        await until(lambda: is_shared(others))
        with pytest.raises(Unavailable):
            await commit(cut_off.node, 99, owned[0])
        cluster.network.heal()
        await until(lambda: {} in cut_off.told[told:])
        await until(lambda: is_shared(members))
        assert cut_off.may_consume()
        assert await committed(others[0].node, owned[0]) != 99

    run_cluster(scenario, tmp_path)


def test_leases_last_while_nothing_happens(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert one.may_consume()
            assert two.may_consume()

    run_cluster(scenario, tmp_path)


def test_a_node_without_peers_has_leases_without_end(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        (one,) = await joined(cluster, 1)
        assert one.membership.lease.until <= cluster[1].clock.monotonic() + 2.5, "it may get peers"
        await asyncio.sleep(10)
        assert one.may_consume()

    run_cluster(scenario, tmp_path, 1)


# --- commits --------------------------------------------------------------------------------------


def test_only_the_owner_commits(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        await commit(one.node, 5, one.owned[0])
        for other in (cluster[2], cluster[3]):
            with pytest.raises(
                OwnedElsewhere,
                match=rf"topic/{one.owned[0]} is consumed by group at node {cluster[1].id} at 127.0.0.1:19091",
            ):
                await commit(other, 6, one.owned[0])
        for node in cluster.nodes.values():
            assert await committed(node, one.owned[0]) == 5
            assert await committed(node, two.owned[0]) is None

    run_cluster(scenario, tmp_path)


def test_offsets_of_a_group_without_members_are_committed_at_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        for number in (1, 2, 3):
            await commit(cluster[number], number)
            for node in cluster.nodes.values():
                assert await committed(node) == number
                assert not await node.backend.consumer_group_exists(GROUP)

    run_cluster(scenario, tmp_path)


def test_a_commit_is_refused_once_the_partition_has_gone_on(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        (one,) = await joined(cluster, 1)
        await commit(cluster[1], 5, 5)
        two = await GroupNode(cluster[2]).join()
        await until(lambda: is_shared([one, two]))
        moved = two.owned[0]
        await commit(cluster[2], 9, moved)
        with pytest.raises(OwnedElsewhere):
            await commit(cluster[1], 6, moved)
        assert await committed(cluster[3], moved) == 9
        await two.membership.leave()
        await until(lambda: is_shared([one]))
        await commit(cluster[1], 10, moved)
        assert await committed(cluster[2], moved) == 10

    run_cluster(scenario, tmp_path)


def test_offsets_set_at_another_node_void_what_the_owner_had(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await asyncio.sleep(5)  # each state group has its preferred leader
        coordinator = coordinator_of(cluster)
        first, second = [number for number, node in cluster.nodes.items() if node is not coordinator]
        one, two = await joined(cluster, first, second)
        mine = one.owned[0]
        await commit(one.node, 5, mine)
        # The entry is slow to come to the owner, which commits meanwhile.
        for node in (coordinator, two.node):
            cluster.network.way(node.host, one.node.host).delays_s = (0.3, 0.3)
        await commit(two.node, 2, mine, set=True)
        assert one.sets == []
        with pytest.raises(OffsetsSet, match="was set meanwhile"):
            await commit(one.node, 6, mine)
        assert one.sets == [{"topic": [mine]}]
        assert await committed(one.node, mine) == 2
        await commit(one.node, 3, mine)
        assert await committed(two.node, mine) == 3
        assert two.sets == []
        assert one.revoked == [{"topic": two.owned}]

    run_cluster(scenario, tmp_path)


def test_offsets_that_the_owner_sets_itself_are_what_it_goes_on_with(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        mine, other = one.owned[0], two.owned[0]
        await commit(cluster[1], 5, mine)
        await commit(cluster[1], 2, mine, set=True)
        await commit(cluster[1], 3, mine)
        await asyncio.sleep(1)
        assert one.sets == []
        await commit(cluster[1], 8, other, set=True)
        await until(lambda: two.sets == [{"topic": [other]}])
        await commit(cluster[2], 9, other)
        assert (await committed(cluster[3], mine), await committed(cluster[3], other)) == (3, 9)

    run_cluster(scenario, tmp_path)


# --- members that nobody is there for -------------------------------------------------------------


def test_a_join_without_an_answer_leaves_no_member(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        (one,) = await joined(cluster, 1)
        before = membership_at(cluster[1]).generation
        group = cluster[2].node.state_groups.group_of(GROUP).group
        joining = asyncio.create_task(GroupNode(cluster[2]).join())
        await until(lambda: group.proposals is not None and len(group.proposals))
        joining.cancel()
        await until(lambda: membership_at(cluster[1]).generation > before)
        await until(lambda: len(membership_at(cluster[1]).members) == 1)
        await until(lambda: is_shared([one]))

    run_cluster(scenario, tmp_path)


def test_a_node_without_a_majority_refuses_commits_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        await commit(cluster[3], 5)
        cluster.split(3)
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        with pytest.raises(
            Unavailable, match=r"no majority: this node reaches 1 of the 3 nodes of groups-\d"
        ):
            await commit(cluster[3], 6)
        assert asyncio.get_running_loop().time() - began < 0.1
        await commit(cluster[1], 7)
        cluster.network.heal()
        await asyncio.sleep(5)
        await commit(cluster[3], 8)
        assert await committed(cluster[1]) == 8

    run_cluster(scenario, tmp_path)


def test_a_leave_that_fails_is_repeated(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await with_topic(cluster)
        one, two = await joined(cluster, 1, 2)
        cluster.split(2)
        await asyncio.sleep(1)
        await two.membership.leave()
        await asyncio.sleep(20)
        cluster.network.heal()
        await until(lambda: is_shared([one]))
        await until(lambda: len(membership_at(cluster[2]).members) == 1)

    run_cluster(scenario, tmp_path)


# --- requests between nodes -----------------------------------------------------------------------


def test_nodes_ask_each_other(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        with pytest.raises(Unavailable, match=f"node {cluster[2].id} has no consumers"):
            await cluster[1].backend.ask_node(cluster[2].id, b"request", 1.0)

        async def answer(asker: int, request: bytes) -> bytes:
            if request == b"refused":
                raise OwnedElsewhere("not here")
            return b"%d asks " % asker + request

        cluster[2].backend.serve_nodes(answer)
        asked = await cluster[1].backend.ask_node(cluster[2].id, b"request", 1.0)
        assert asked == b"%d asks request" % cluster[1].id
        with pytest.raises(OwnedElsewhere, match="not here"):
            await cluster[1].backend.ask_node(cluster[2].id, b"refused", 1.0)
        killing = asyncio.create_task(cluster[2].kill())
        with pytest.raises(Unavailable):
            await cluster[1].backend.ask_node(cluster[2].id, b"request", 1.0)
        await killing

    run_cluster(scenario, tmp_path)


def test_questions_of_consumer_groups_leave_calls_to_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        end = asyncio.Event()

        async def answer(asker: int, request: bytes) -> bytes:
            await end.wait()
            return request

        cluster[2].backend.serve_nodes(answer)
        questions = [
            asyncio.create_task(cluster[1].backend.ask_node(cluster[2].id, b"", 60.0)) for _ in range(3072)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=f"3072 calls of consumer groups to node {cluster[2].id} are"):
            await cluster[1].backend.ask_node(cluster[2].id, b"", 1.0)
        await with_topic(cluster)
        end.set()
        assert set(await asyncio.gather(*questions)) == {b""}
        assert await cluster[1].backend.ask_node(cluster[2].id, b"again", 1.0) == b"again"

    run_cluster(scenario, tmp_path)
