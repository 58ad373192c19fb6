from dataclasses import replace

import pytest

from pixy.cluster.status.status import DamagedReplica, MemberState, NodeStatus, with_unreported, without_gone
from pixy.cluster.status.status_problems import problems
from tests.cluster.statuses import CHECKPOINT, COPY, LEAVING, LOST_NODE_3, WELL, cluster, group, node


def test_a_cluster_that_is_well_has_no_problems() -> None:
    assert problems(WELL) == ()
    assert problems(cluster(group(voters=(1,)), nodes=(node(1),))) == ()


FETCHES = "; the node fetches {} from other replicas"


def test_damaged_partitions_are_named_with_their_node_and_the_damage() -> None:
    one = replace(group(1000, "topic-0"), damaged=(DamagedReplica(2, "file f at byte 3"),))
    two = replace(group(1001, "topic-1"), damaged=(DamagedReplica(2, "file g at byte 4"),))
    assert problems(cluster(group(), one)) == (
        "node 2 has damaged partition topic-0, and serves nothing of it: file f at byte 3"
        + FETCHES.format("it"),
    )
    assert problems(cluster(group(), one, two)) == (
        "node 2 has damaged partitions topic-0 and topic-1, and serves nothing of them: file f at byte 3"
        + FETCHES.format("them"),
    )
    alone = group(1002, "alone-0", voters=(2,))
    alone = replace(alone, damaged=(DamagedReplica(2, "file h at byte 5"),))
    assert problems(cluster(group(), alone, one)) == (
        "node 2 has damaged partition alone-0, and serves nothing of it: file h at byte 5; stop the node and put the file "
        "back from a backup",
        "node 2 has damaged partition topic-0, and serves nothing of it: file f at byte 3"
        + FETCHES.format("it"),
    )


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
        "node 2 copies partitions t-0 and t-1: the leaders' journals do not go back to where it is",
        "node 3 fetches checkpoints of metadata",
    )


def test_what_a_node_that_is_down_lacks_is_no_problem_of_its_own() -> None:
    status = cluster(group(behind={3: 5000}, states={3: MemberState.PROBING}), nodes=LOST_NODE_3.nodes)
    assert len(problems(status)) == 1


def test_topics_with_too_few_replicas_are_named() -> None:
    assert problems(replace(WELL, under_replicated=("a",))) == (
        "topic a has fewer replicas than `replication` asks for: made when the cluster had fewer nodes, or nodes have left since",
    )
    drained = replace(WELL.nodes[2], draining=True)
    (problem,) = problems(replace(WELL, nodes=(*WELL.nodes[:2], drained), under_replicated=("a",)))
    assert problem.endswith("or nodes have left since; node 3 is drained and gets none")
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
