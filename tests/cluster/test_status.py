from dataclasses import replace

import pytest

from pixy.cluster.status import (
    CAUGHT_UP_ENTRIES,
    ClusterStatus,
    DamagedReplica,
    MemberState,
    MemberStatus,
    NodeStatus,
    RaftGroupStatus,
    merged,
    problems,
    reasons_to_keep,
    safe_to_stop,
    unreplicated,
    with_unreported,
    without_gone,
)

REPLICATING, CHECKPOINT, COPY = MemberState.REPLICATING, MemberState.CHECKPOINT, MemberState.COPY


def node(node_id: int, *, up: bool = True, heard_s: float | None = 0.1, problem: str = "") -> NodeStatus:
    is_self = node_id == 1
    return NodeStatus(
        node_id,
        f"10.0.0.{node_id}:19094",
        up=up,
        is_self=is_self,
        heard_s=None if is_self else heard_s,
        problem=problem,
    )


def group(
    raft_group: int = 1,
    name: str = "metadata",
    *,
    leader: int = 1,
    voters: tuple[int, ...] = (1, 2, 3),
    states: dict[int, MemberState] | None = None,
    behind: dict[int, int] | None = None,
) -> RaftGroupStatus:
    members = tuple(
        MemberStatus(
            voter,
            100,
            (behind or {}).get(voter, 0),
            MemberState.LEADER if voter == leader else (states or {}).get(voter, REPLICATING),
        )
        for voter in voters
    )
    return RaftGroupStatus(raft_group, name, leader, 5, voters, members=members if leader else ())


def cluster(*groups: RaftGroupStatus, nodes: tuple[NodeStatus, ...] = ()) -> ClusterStatus:
    return ClusterStatus(b"c" * 16, nodes or (node(1), node(2), node(3)), groups)


WELL = cluster(group(), group(1000, "topic-0", leader=2))
LOST_NODE_3 = cluster(group(), nodes=(node(1), node(2), node(3, up=False, heard_s=12.3)))


# --- safe to stop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_any_node_of_three_can_be_stopped_while_all_are_up(node_id: int) -> None:
    assert safe_to_stop(WELL, node_id) == ()


def test_a_second_node_of_three_cannot_be_stopped() -> None:
    assert safe_to_stop(LOST_NODE_3, 2) == (
        "raft group metadata: of voters 1, 2 and 3 only 1 would be up and caught up",
    )


def test_a_node_that_is_down_can_be_stopped() -> None:
    assert safe_to_stop(LOST_NODE_3, 3) == ()


def test_an_unknown_node_cannot_be_stopped() -> None:
    assert safe_to_stop(WELL, 7) == ("the cluster has no node 7, only 1, 2, 3",)


def test_a_node_alone_cannot_be_stopped() -> None:
    status = cluster(group(voters=(1,)), group(1000, "topic-0", voters=(1,)), nodes=(node(1),))
    assert safe_to_stop(status, 1) == (
        "raft groups metadata and topic-0: of voter 1 none would be up and caught up",
    )


@pytest.mark.parametrize("state", [CHECKPOINT, COPY, MemberState.PROBING])
def test_a_follower_that_waits_cannot_replace_another_node(state: MemberState) -> None:
    status = cluster(group(states={3: state}))
    assert safe_to_stop(status, 2) == (
        "raft group metadata: of voters 1, 2 and 3 only 1 would be up and caught up",
    )
    assert safe_to_stop(status, 3) == ()


@pytest.mark.parametrize(("behind", "safe"), [(CAUGHT_UP_ENTRIES, True), (CAUGHT_UP_ENTRIES + 1, False)])
def test_a_follower_counts_while_it_lacks_only_the_newest_entries(behind: int, safe: bool) -> None:
    assert (not safe_to_stop(cluster(group(behind={3: behind})), 2)) == safe


def test_topics_with_too_few_replicas_are_a_reason_that_does_not_pass() -> None:
    lone, pair = group(1000, "my-orders-0", voters=(1,)), group(1001, "pair-0", voters=(1, 2))
    status = cluster(group(), lone, group(1002, "my-orders-1", voters=(1,)), group(1003, "well-0"), pair)
    (reason,) = safe_to_stop(status, 1)
    assert reason == unreplicated(status, 1)
    assert reason.startswith(
        "topics my-orders and pair would stop until it is back: 3 partitions with 1 or 2 replicas "
    )
    assert unreplicated(status, 2).startswith(
        "topic pair would stop until it is back: 1 partition with 2 replicas only"
    )
    assert safe_to_stop(status, 3) == () == (unreplicated(status, 3) or ())


def test_a_replica_that_lags_or_is_damaged_passes_and_keeps_the_other_one() -> None:
    pair = group(1001, "pair-0", voters=(1, 2))
    for other in (
        replace(pair, damaged=(DamagedReplica(2, "file f at byte 3"),)),
        group(1001, "pair-0", voters=(1, 2), states={2: COPY}),
    ):
        assert unreplicated(cluster(group(), other), 1) == ""
        assert safe_to_stop(cluster(group(), other), 1)[0].startswith("raft group pair-0: of voters 1 and 2 ")


def test_a_damaged_replica_cannot_replace_another_one() -> None:
    damaged = (DamagedReplica(3, "file f at byte 3"),)
    status = cluster(group(), replace(group(1000, "topic-0"), damaged=damaged))
    assert safe_to_stop(status, 2) == (
        "raft group topic-0: of voters 1, 2 and 3 only 1 would be up and caught up and undamaged",
    )
    assert reasons_to_keep(status, 2) == (
        "raft group topic-0: of voters 1 and 3 only 1 would be up and caught up and undamaged",
    )
    assert safe_to_stop(status, 3) == ()


def test_a_group_without_a_leader_keeps_its_voters() -> None:
    status = cluster(group(leader=0), group(1000, "topic-0", voters=(1,)))
    assert safe_to_stop(status, 2) == (
        "raft group metadata: no leader, so nobody knows which replicas are complete",
    )


def test_a_group_whose_leader_has_not_answered_keeps_its_voters() -> None:
    status = cluster(replace(group(leader=3), members=()))
    assert safe_to_stop(status, 1) == (
        "raft group metadata: the leader, node 3, has not told which replicas are complete",
    )


def test_a_learner_can_be_stopped() -> None:
    status = cluster(replace(group(voters=(1, 2)), learners=(3,)))
    assert safe_to_stop(status, 3) == ()


def test_a_joint_configuration_needs_both_majorities() -> None:
    joint = replace(group(), voters_outgoing=(1, 2))
    assert safe_to_stop(cluster(joint), 3) == ()
    assert safe_to_stop(cluster(joint), 2) == (
        "raft group metadata: of voters 1 and 2 only 1 would be up and caught up",
    )


# --- problems -------------------------------------------------------------------------------------


def test_a_cluster_that_is_well_has_no_problems() -> None:
    assert problems(WELL) == ()
    assert problems(cluster(group(voters=(1,)), nodes=(node(1),))) == ()


def test_damaged_partitions_are_named_with_their_node_and_the_damage() -> None:
    one = replace(group(1000, "topic-0"), damaged=(DamagedReplica(2, "file f at byte 3"),))
    two = replace(group(1001, "topic-1"), damaged=(DamagedReplica(2, "file g at byte 4"),))
    assert problems(cluster(group(), one)) == (
        "node 2 has damaged partition topic-0, and serves nothing of it: file f at byte 3",
    )
    assert problems(cluster(group(), one, two)) == (
        "node 2 has damaged partitions topic-0 and topic-1, and serves nothing of them: file f at byte 3",
    )


def test_what_every_node_tells_of_itself_and_of_its_replicas_is_kept() -> None:
    def told_by(node_id: int) -> ClusterStatus:
        nodes = tuple(
            replace(node(each), is_self=each == node_id, troubles=(f"trouble {node_id}",)) for each in (1, 2)
        )
        damaged = (DamagedReplica(node_id, f"damage {node_id}"),)
        return cluster(replace(group(leader=node_id), term=5 + node_id, damaged=damaged), nodes=nodes)

    status = merged(told_by(1), [told_by(2)])
    assert [each.troubles for each in status.nodes] == [("trouble 1",), ("trouble 2",)]
    assert [group.damaged for group in status.groups] == [((1, "damage 1"), (2, "damage 2"))]
    assert [each for each in problems(status) if "trouble" in each] == [
        "node 1 (10.0.0.1:19094): trouble 1",
        "node 2 (10.0.0.2:19094): trouble 2",
    ]


def test_a_node_that_is_down_is_named_with_the_time_since_it_was_heard_of() -> None:
    assert problems(LOST_NODE_3) == ("node 3 (10.0.0.3:19094) is not reachable: not heard of for 12 s",)


def test_a_node_that_was_never_heard_of_is_named_with_the_reason() -> None:
    status = cluster(group(), nodes=(node(1), node(2), node(3, up=False, heard_s=None, problem="refused")))
    assert problems(status) == (
        "node 3 (10.0.0.3:19094) is not reachable: not heard of since this node started: refused",
    )


def test_the_problem_of_a_node_that_is_up_is_reported() -> None:
    status = cluster(group(), nodes=(node(1), node(2, problem="an older self was refused"), node(3)))
    assert problems(status) == ("node 2 (10.0.0.2:19094): an older self was refused",)


def test_groups_without_a_leader_are_gathered_by_their_voters() -> None:
    groups = [group(number, f"t-{number}", leader=0) for number in range(6)]
    status = cluster(
        *groups, group(9, "u-0", leader=0, voters=(3,)), nodes=(node(1), node(2, up=False), node(3, up=False))
    )
    assert problems(status)[2:] == (
        "no leader for raft groups t-0, t-1, t-2 and 3 others: of voters 1, 2 and 3 only 1 is up",
        "no leader for raft group u-0: of voter 3 none is up",
    )


def test_a_majority_that_was_forgotten_does_not_come_back() -> None:
    status = cluster(group(1000, "topic-0", leader=0, voters=(1, 4, 5)))
    assert problems(status) == (
        "no leader for raft group topic-0: of voters 1, 4 and 5 only 1 is up, and nodes 4 and 5 will not come back: there "
        "cannot be one any more",
    )
    one_is_down = replace(status, nodes=(*WELL.nodes, node(4, up=False)))
    assert problems(one_is_down)[-1] == (
        "no leader for raft group topic-0: of voters 1, 4 and 5 only 1 is up"
    )


def test_partitions_that_nobody_tells_of_are_named_while_no_node_of_theirs_is_up() -> None:
    status = cluster(group(), group(1000, "t-0"), nodes=(node(1), node(2, up=False), node(3, up=False)))
    partitions = [(1000, "t-0", (2, 3)), (1001, "t-1", (3, 2)), (1002, "t-2", (1, 2)), (1003, "t-3", (7,))]
    status = with_unreported(status, partitions)
    assert [each.name for each in status.groups] == ["metadata", "t-0", "t-1", "t-3"]
    assert problems(status)[2:4] == (
        "no leader for raft group t-1: of voters 2 and 3 none is up",
        "no leader for raft group t-3: of voter 7 none is up, and node 7 will not come back: there cannot be one any "
        "more",
    )


def test_a_node_whose_address_a_later_one_has_will_hardly_come_back() -> None:
    nodes = (node(1), node(2, up=False), node(3, up=False), replace(node(5), address=node(2).address))
    status = cluster(group(1000, "t-0", leader=0), nodes=nodes)
    assert problems(status)[2:] == (
        "node 5 is at the address of node 2: if the directory of node 2 is lost, give it up with `pixy cluster "
        "forget 2`",
        "no leader for raft group t-0: of voters 1, 2 and 3 only 1 is up",
    )
    both = (*nodes, replace(node(6), address=node(3).address))
    assert problems(replace(status, nodes=both))[-1] == (
        "no leader for raft group t-0: of voters 1, 2 and 3 only 1 is up, and nodes 2 and 3 will hardly come back: "
        "others have their addresses"
    )


def test_a_group_that_can_elect_a_leader_is_about_to() -> None:
    assert problems(cluster(group(leader=0))) == ("no leader for raft group metadata: an election is due",)


def test_a_follower_that_is_behind_is_named_with_its_worst_group() -> None:
    groups = [group(number, f"t-{number}", behind={2: 5000 + number}) for number in range(3)]
    assert problems(cluster(*groups)) == (
        "node 2 is 5002 entries behind in t-2 and, by less, in 2 other raft groups",
    )


def test_a_follower_that_waits_for_files_is_named() -> None:
    groups = [group(1000 + number, f"t-{number}", states={2: COPY}) for number in range(2)]
    assert problems(cluster(*groups, group(states={3: CHECKPOINT}))) == (
        "node 2 waits for copies of partitions t-0 and t-1: the leaders' journals do not go back to where it is",
        "node 3 fetches checkpoints of metadata",
    )


def test_what_a_node_that_is_down_lacks_is_no_problem_of_its_own() -> None:
    status = cluster(group(behind={3: 5000}, states={3: MemberState.PROBING}), nodes=LOST_NODE_3.nodes)
    assert len(problems(status)) == 1


def test_topics_with_too_few_replicas_are_named() -> None:
    assert problems(replace(WELL, under_replicated=("a",))) == (
        "topic a has fewer replicas than `replication` asks for: made when the cluster had fewer nodes, or nodes have left since",
    )
    (problem,) = problems(replace(WELL, under_replicated=("a", "b", "c", "d")))
    assert problem.startswith("topics a, b, c and d have fewer replicas")


def test_a_cluster_of_two_is_a_problem() -> None:
    status = cluster(group(voters=(1, 2)), nodes=(node(1), node(2)))
    assert problems(status) == (
        "the cluster has two nodes: both must confirm each write, so the loss of either stops all writes",
    )


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize(
    ("offset_ms", "text"), [(60_000, ""), (3_600_000, "3600 s ahead of"), (-61_000, "61 s behind")]
)
def test_a_clock_that_is_a_minute_from_the_agreed_time_is_a_problem_also_the_own_one(
    node_id: int, offset_ms: int, text: str
) -> None:
    nodes = [node(1), node(2), node(3)]
    nodes[node_id - 1] = replace(nodes[node_id - 1], clock_offset_ms=offset_ms)
    found = problems(cluster(group(), nodes=tuple(nodes)))
    assert found == (() if not text else found)
    assert not text or found[0].startswith(
        f"the clock of node {node_id} (10.0.0.{node_id}:19094) is {text} the time that a majority of the nodes agrees "
        "on: it stamps records by that time, leads only"
    )


@pytest.mark.parametrize("third", [replace(node(3), up=False), replace(node(3), clock_offset_ms=-(10**9))])
def test_clocks_without_a_majority_are_a_problem(third: NodeStatus) -> None:
    nodes = (node(1), replace(node(2), clock_offset_ms=3_600_000), third)
    assert (
        "the clock of node 2 (10.0.0.2:19094) is 3600 s ahead of that of node 1: no majority of the nodes agrees on a "
        "time, so nothing expires"
    ) in problems(cluster(group(), nodes=nodes))


def test_a_node_that_is_not_ready_says_so_first() -> None:
    assert problems(replace(LOST_NODE_3, not_ready="waits for node 3"))[0] == (
        "this node is not ready: waits for node 3"
    )


# --- merging --------------------------------------------------------------------------------------


def test_of_each_group_the_leaders_report_counts() -> None:
    follower = replace(group(), members=())
    assert merged(cluster(follower), [cluster(group())]).groups == (group(),)
    assert merged(cluster(group()), [cluster(follower)]).groups == (group(),)


def test_a_higher_term_counts_more_than_a_former_leaders_report() -> None:
    newer = replace(group(leader=0), term=6)
    assert merged(cluster(group()), [cluster(newer)]).groups == (newer,)


def test_groups_that_only_others_have_are_added_in_order() -> None:
    whole = merged(cluster(group(5, "b-0")), [cluster(group(4, "a-0")), cluster(group(6, "c-0"))])
    assert [each.name for each in whole.groups] == ["a-0", "b-0", "c-0"]
    assert whole.nodes == WELL.nodes


# --- nodes that were removed ----------------------------------------------------------------------

LEAVING = replace(WELL, nodes=(node(1), node(2), replace(node(3), removed=True)))


def test_a_removed_node_is_listed_as_long_as_a_group_has_it() -> None:
    assert without_gone(LEAVING) == LEAVING
    learner = replace(group(voters=(1, 2)), learners=(3,))
    outgoing = replace(group(voters=(1, 2)), voters_outgoing=(1, 2, 3))
    for each in (learner, outgoing):
        assert len(without_gone(replace(LEAVING, groups=(each,))).nodes) == 3
    left = replace(LEAVING, groups=(group(voters=(1, 2)),), cut_links=((1, 2), (1, 3)))
    assert [each.node_id for each in without_gone(left).nodes] == [1, 2]
    assert without_gone(left).cut_links == ((1, 2),)


def test_a_removed_node_lists_itself() -> None:
    own = replace(node(3), removed=True, is_self=True)
    status = cluster(group(voters=(1, 2)), nodes=(replace(node(1), is_self=False), node(2), own))
    assert without_gone(status) == status
    assert problems(status)[0] == (
        "this node was removed: it can be stopped when the others do not list node 3 any more"
    )


def test_a_node_that_leaves_is_a_problem_and_no_node_of_the_cluster() -> None:
    assert problems(LEAVING) == (
        "node 3 was removed, and is a member of raft groups metadata and topic-0 until other voters have taken over: "
        "keep it running",
        "the cluster has two nodes: both must confirm each write, so the loss of either stops all writes",
    )


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_any_node_can_be_removed_while_all_are_up(node_id: int) -> None:
    assert reasons_to_keep(WELL, node_id) == ()


def test_a_node_is_kept_while_the_others_have_no_majority_without_it() -> None:
    assert reasons_to_keep(LOST_NODE_3, 2) == (
        "raft group metadata: of voters 1 and 3 only 1 would be up and caught up",
    )
    assert reasons_to_keep(LOST_NODE_3, 3) == ()


def test_one_of_two_nodes_can_be_removed() -> None:
    two = cluster(group(voters=(1, 2)), nodes=(node(1), node(2)))
    assert reasons_to_keep(two, 2) == ()
    assert reasons_to_keep(replace(two, nodes=(node(1, up=False), node(2))), 2) != ()


@pytest.mark.parametrize("raft_group", [1, 1000])
def test_a_state_group_takes_another_voter_and_a_partition_does_not(raft_group: int) -> None:
    members = tuple(MemberStatus(each, 100, 0, REPLICATING) for each in (1, 2, 3, 4))
    group_of_four = replace(group(raft_group), learners=(4,), members=members)
    nodes = (node(1), node(2, up=False), node(3), node(4))
    reasons = reasons_to_keep(cluster(group_of_four, nodes=nodes), 3)
    assert bool(reasons) == (raft_group == 1000)


def test_a_group_that_has_no_replica_on_a_node_does_not_keep_it() -> None:
    assert reasons_to_keep(cluster(group(1000, "t-0", leader=0, voters=(1, 2))), 3) == ()
    assert reasons_to_keep(cluster(group(1000, "t-0", leader=0)), 3) != ()
    assert reasons_to_keep(cluster(group(1000, "t-0", voters=(3,), leader=3)), 3) == ()


# --- links that are cut ---------------------------------------------------------------------------


def test_the_links_that_any_node_does_without_are_merged() -> None:
    through_two = replace(node(3), through=2)
    own = cluster(nodes=(node(1), node(2), through_two))
    seen_by_three = cluster(
        nodes=(replace(node(1), is_self=False, through=2), node(2), replace(node(3), is_self=True))
    )
    assert merged(own, []).cut_links == ((1, 3),)
    assert merged(cluster(), [seen_by_three]).cut_links == ((1, 3),)
    assert merged(own, [seen_by_three]).cut_links == ((1, 3),)


def test_the_node_between_two_others_cannot_be_stopped() -> None:
    status = replace(WELL, cut_links=((1, 3),))
    assert problems(status) == ("nodes 1 and 3 have no connection to each other, and go through other nodes",)
    assert safe_to_stop(status, 2) == ("nodes 1 and 3 have no connection to each other, and may need it",)
    assert safe_to_stop(status, 1) == safe_to_stop(status, 3) == ()
