"""Decisions of the coordinator: who gets a target, and which processes have ended."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pixy.cluster.consumer_groups import group_decisions
from pixy.cluster.consumer_groups.group_decisions import why_ended
from pixy.cluster.state.group_members import NO_MEMBERS, GroupMember, MemberId, Membership, Owners, Process
from pixy.cluster.state.nodes import NodeInfo
from pixy.cluster.state.topic import Topic
from tests.fakes.steps import result_of

ONE, TWO = MemberId(1, 1, 1), MemberId(2, 1, 1)
A = Topic("a", b"id-a", 1, {}, (1000, 1001), ((1,), (2,)))
B = Topic("b", b"id-b", 1, {}, (1002,), ((2, 1),))
OWN = Process(1, 5)


def needed_target(membership: Membership, topics: Mapping[str, Topic]) -> dict[bytes, Owners] | None:
    """The result of all steps."""
    return result_of(group_decisions.needed_target(membership, topics))


def members(*ids: MemberId, topics: tuple[str, ...] = ("a",)) -> Membership:
    membership = NO_MEMBERS
    for member_id in ids:
        membership = membership.joined(member_id, GroupMember("client", topics))
    return membership


def test_a_group_whose_members_have_changed_needs_a_target() -> None:
    assert needed_target(members(ONE, TWO), {"a": A, "b": B}) == {b"id-a": (ONE, TWO)}
    assert needed_target(members(ONE, topics=("a", "b", "c")), {"a": A, "b": B}) == {
        b"id-a": (ONE, ONE),
        b"id-b": (ONE,),
    }


def test_a_target_without_partitions_settles_a_group_too() -> None:
    joined = members(ONE, topics=("c",))
    assert needed_target(joined, {}) == {}
    assert needed_target(joined.with_target({}), {}) is None


def test_a_settled_group_needs_a_target_when_its_topics_change() -> None:
    settled = members(ONE, TWO).with_target({A.topic_id: (ONE, TWO)})
    assert needed_target(settled, {"a": A}) is None
    grown = replace(A, raft_groups=(1000, 1001, 1003), replicas=((1,), (2,), (2,)))
    assert needed_target(settled, {"a": grown}) == {b"id-a": (ONE, TWO, TWO)}
    assert needed_target(settled, {}) == {}
    again = replace(A, topic_id=b"again")
    assert needed_target(settled, {"a": again}) == {b"again": (ONE, TWO)}


def test_a_group_on_the_way_to_its_target_needs_no_other() -> None:
    moving = members(ONE).with_target({A.topic_id: (ONE, ONE)}).joined(TWO, GroupMember("client", ("a",)))
    target = needed_target(moving, {"a": A})
    assert target == {b"id-a": (ONE, TWO)}
    assert needed_target(moving.with_target(target), {"a": A}) is None


def test_a_group_without_members_needs_none() -> None:
    assert needed_target(NO_MEMBERS, {"a": A}) is None


def test_a_topic_of_a_release_without_replicas_is_assigned() -> None:
    assert needed_target(members(ONE), {"a": replace(A, replicas=())}) == {b"id-a": (ONE, ONE)}


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (OWN, ""),
        (Process(1, 4), "it has started again"),
        (Process(2, 7), ""),
        (Process(2, 6), "it has started again"),
        (Process(2, 8), ""),  # metadata is behind
        (Process(3, 1), ""),  # its node was removed: it commits and leaves
        (Process(9, 1), ""),  # not known yet
        (Process(4, 7), "it has started again"),  # it came as another start
        (Process(4, 8), ""),
        (Process(8, 2), "it has started again"),  # and was never in metadata
        (Process(8, 3), ""),
    ],
)
def test_a_process_has_ended_if_its_node_has_started_again(process: Process, reason: str) -> None:
    nodes = {
        node_id: NodeInfo(node_id, b"", "", "", "", incarnation, "1", removed=removed)
        for node_id, incarnation, removed in ((1, 5, False), (2, 7, False), (3, 1, True), (4, 7, False))
    }
    assert why_ended(process, OWN, nodes, {2: 6, 4: 8, 8: 3}) == reason
    assert why_ended(Process(1, 4), OWN, {}, {}) == "it has started again"
