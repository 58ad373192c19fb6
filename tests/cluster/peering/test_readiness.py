"""Readiness of a node with peers, by the leader of metadata."""

import pytest

from pixy.cluster.peering.readiness import PATIENCE_S, Readiness


def test_a_node_is_ready_until_metadata_has_had_no_leader_for_long() -> None:
    readiness = Readiness()
    changes = [
        readiness.look(now, has_leader=has_leader, unreachable=[])
        for now, has_leader in (
            (0.0, True),
            (1.0, False),
            (1.0 + PATIENCE_S - 0.1, False),
            (1.0 + PATIENCE_S, False),
            (10.0, False),
            (11.0, True),
            (12.0, True),
        )
    ]
    assert changes == [False, False, False, True, False, True, False]
    assert readiness.reason == ""


def test_an_election_in_time_begins_the_patience_anew() -> None:
    readiness = Readiness()
    readiness.look(0.0, has_leader=False, unreachable=[])
    readiness.look(PATIENCE_S - 0.1, has_leader=True, unreachable=[])
    assert not readiness.look(PATIENCE_S, has_leader=False, unreachable=[])
    assert readiness.reason == ""


@pytest.mark.parametrize(
    ("unreachable", "reason"),
    [
        ([], "no majority: no node leads the cluster's metadata"),
        ([2], "no majority: node 2 cannot be reached"),
        ([3, 2], "no majority: nodes 2 and 3 cannot be reached"),
        ([2, 3, 5], "no majority: nodes 2, 3 and 5 cannot be reached"),
    ],
)
def test_the_reason_names_the_nodes_that_cannot_be_reached(unreachable: list[int], reason: str) -> None:
    readiness = Readiness()
    for now in (0.0, PATIENCE_S):
        readiness.look(now, has_leader=False, unreachable=unreachable)
    assert readiness.reason == reason


def test_the_reason_follows_the_nodes() -> None:
    readiness = Readiness()
    for now, unreachable in ((0.0, [2]), (PATIENCE_S, [2]), (PATIENCE_S + 1, [2, 3])):
        readiness.look(now, has_leader=False, unreachable=unreachable)
    assert readiness.reason == "no majority: nodes 2 and 3 cannot be reached"
