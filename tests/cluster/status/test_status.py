from dataclasses import replace

from pixy.cluster.status.status import ClusterStatus, DamagedReplica, DiskSpace, merged, without_gone
from pixy.cluster.status.status_problems import problems
from tests.cluster.statuses import LEAVING, WELL, cluster, group, node


def test_what_every_node_tells_of_itself_and_of_its_replicas_is_kept() -> None:
    def told_by(node_id: int) -> ClusterStatus:
        nodes = tuple(
            replace(
                node(each),
                is_self=each == node_id,
                troubles=(f"trouble {node_id}",),
                disk=DiskSpace(9, node_id),
            )
            for each in (1, 2)
        )
        damaged = (DamagedReplica(node_id, f"damage {node_id}"),)
        return cluster(replace(group(leader=node_id), term=5 + node_id, damaged=damaged), nodes=nodes)

    status = merged(told_by(1), [told_by(2)])
    assert [each.troubles for each in status.nodes] == [("trouble 1",), ("trouble 2",)]
    assert [each.disk for each in status.nodes] == [(9, 1), (9, 2)]
    assert [group.damaged for group in status.groups] == [((1, "damage 1"), (2, "damage 2"))]
    assert [each for each in problems(status) if "trouble" in each] == [
        "node 1 (10.0.0.1:19094): trouble 1",
        "node 2 (10.0.0.2:19094): trouble 2",
    ]


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


def test_a_removed_node_is_listed_as_long_as_a_group_has_it() -> None:
    assert without_gone(LEAVING) == LEAVING
    learner = replace(group(voters=(1, 2)), learners=(3,))
    outgoing = replace(group(voters=(1, 2)), voters_outgoing=(1, 2, 3))
    for each in (learner, outgoing):
        assert len(without_gone(replace(LEAVING, groups=(each,))).nodes) == 3
    left = replace(LEAVING, groups=(group(voters=(1, 2)),), cut_links=((1, 2), (1, 3)))
    assert [each.node_id for each in without_gone(left).nodes] == [1, 2]
    assert without_gone(left).cut_links == ((1, 2),)


def test_the_links_that_any_node_does_without_are_merged() -> None:
    through_two = replace(node(3), through=2)
    own = cluster(nodes=(node(1), node(2), through_two))
    seen_by_three = cluster(
        nodes=(replace(node(1), is_self=False, through=2), node(2), replace(node(3), is_self=True))
    )
    assert merged(own, []).cut_links == ((1, 3),)
    assert merged(cluster(), [seen_by_three]).cut_links == ((1, 3),)
    assert merged(own, [seen_by_three]).cut_links == ((1, 3),)
