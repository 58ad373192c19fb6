from dataclasses import replace

import pytest

from pixy.cluster.status.status import CAUGHT_UP_ENTRIES, DamagedReplica, MemberState, MemberStatus
from pixy.cluster.status.status_problems import problems
from pixy.cluster.status.stop_checks import reasons_to_keep, safe_to_stop, unreplicated
from tests.cluster.statuses import CHECKPOINT, COPY, LOST_NODE_3, REPLICATING, WELL, cluster, group, node


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
    assert unreplicated(status, 2).endswith(
        "They stay so: copy the records to a new topic, or go on with --accept-unreplicated"
    )
    assert unreplicated(replace(status, can_move=True), 2).endswith(
        "Give them more with pixy topics alter --config replication=3, or go on with --accept-unreplicated"
    )
    for lacking, cure in (
        (("pair",), "They get more from nodes that have been"),
        ((), "Give them more with"),
    ):
        reason = unreplicated(replace(status, can_move=True, under_replicated=lacking), 2)
        assert cure in reason
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


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_any_node_can_be_removed_while_all_are_up(node_id: int) -> None:
    assert reasons_to_keep(WELL, node_id) == ()


def test_a_node_is_kept_while_the_others_have_no_majority_without_it() -> None:
    assert reasons_to_keep(LOST_NODE_3, 2) == (
        "raft group metadata: of voters 1 and 3 only 1 would be up and caught up",
    )
    assert reasons_to_keep(LOST_NODE_3, 3) == ()


def test_a_node_is_kept_while_another_one_leaves_its_groups() -> None:
    leaving = replace(node(2), removed=True)
    status = cluster(group(), nodes=(node(1), leaving, node(3)))
    assert reasons_to_keep(status, 3) == ("raft group metadata: node 2, which was removed, has not left yet",)
    assert reasons_to_keep(cluster(group(voters=(1, 3)), nodes=(node(1), leaving, node(3))), 3) == ()


def test_one_of_two_nodes_can_be_removed() -> None:
    two = cluster(group(voters=(1, 2)), nodes=(node(1), node(2)))
    assert reasons_to_keep(two, 2) == ()
    assert reasons_to_keep(replace(two, nodes=(node(1, up=False), node(2))), 2) != ()


DISPUTED = (
    "no majority of the nodes agrees on the time, as the clocks of node 1 and {others} differ by more than a minute: "
    "nodes that stay could take a wrong clock for right, and remove records by it; set the clocks first"
)


@pytest.mark.parametrize("node_id", [1, 2])
def test_no_node_is_removed_while_two_clocks_differ(node_id: int) -> None:
    nodes = (node(1), replace(node(2), clock_offset_ms=-400 * 86_400_000))
    two = cluster(group(voters=(1, 2)), nodes=nodes)
    assert reasons_to_keep(two, node_id) == (DISPUTED.format(others="node 2"),)


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_a_node_can_be_removed_while_the_others_agree_on_the_time(node_id: int) -> None:
    nodes = (replace(node(1), clock_offset_ms=10**9), node(2), node(3))
    assert reasons_to_keep(replace(WELL, nodes=nodes), node_id) == ()


def test_half_of_the_nodes_agree_on_no_time() -> None:
    wrong = [replace(node(each), clock_offset_ms=10**9) for each in (3, 4)]
    status = replace(WELL, nodes=(node(1), node(2), *wrong))
    assert reasons_to_keep(status, 2) == (DISPUTED.format(others="nodes 3 and 4"),)


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


def test_the_node_between_two_others_cannot_be_stopped() -> None:
    status = replace(WELL, cut_links=((1, 3),))
    assert problems(status) == ("nodes 1 and 3 have no connection to each other, and go through other nodes",)
    assert safe_to_stop(status, 2) == ("nodes 1 and 3 have no connection to each other, and may need it",)
    assert safe_to_stop(status, 1) == safe_to_stop(status, 3) == ()
