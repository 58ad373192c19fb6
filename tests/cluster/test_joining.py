"""Requests of nodes that want to join."""

from typing import Any

import pytest

from pixy.cluster.joining import check_join, check_joined
from pixy.errors import FailedPrecondition
from pixy.proto.node_calls_pb2 import JoinRequest, JoinResponse, NodeAddress

GOOD: dict[str, Any] = {
    "secret": bytes(16),
    "address": "10.0.0.2:19094",
    "grpc_address": "/run/pixy.sock",
    "rack": "a",
    "version": "1",
}


def test_a_node_may_join() -> None:
    check_join(JoinRequest(**GOOD))
    check_join(JoinRequest(secret=bytes(16), address="[::1]:1"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"secret": b""}, "a secret of 0 bytes"),
        ({"secret": bytes(1 << 20)}, "a secret of 1048576 bytes"),
        ({"address": "nowhere"}, "cannot join with the peer address"),
        ({"address": ""}, "cannot join with the peer address"),
        ({"address": "a\x1b[2J:1"}, "an impossible address"),
        ({"rack": "r" * 10_000}, "an impossible rack"),
        ({"version": "1\n2"}, "an impossible version"),
        ({"feature_level": 2**32 - 1}, "feature level 4294967295 cannot join, at most 1000"),
    ],
)
def test_what_no_node_says_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(FailedPrecondition, match=reason):
        check_join(JoinRequest(**{**GOOD, **changes}))


NODE = NodeAddress(node_id=1, address="a:1")


def test_an_answer_makes_an_identity() -> None:
    check_joined(JoinResponse(cluster_id=bytes(16), node_id=2, nodes=[NODE]))


@pytest.mark.parametrize(
    "answer",
    [
        JoinResponse(cluster_id=b"", node_id=2, nodes=[NODE]),
        JoinResponse(cluster_id=bytes(1 << 20), node_id=2, nodes=[NODE]),
        JoinResponse(cluster_id=bytes(16), node_id=0, nodes=[NODE]),
        JoinResponse(cluster_id=bytes(16), node_id=-1, nodes=[NODE]),
        JoinResponse(cluster_id=bytes(16), node_id=2, nodes=[NODE, NodeAddress(node_id=-5)]),
    ],
)
def test_an_answer_that_no_node_gives_is_refused(answer: JoinResponse) -> None:
    with pytest.raises(FailedPrecondition, match="expected are 16 bytes and ids from 1 to"):
        check_joined(answer)
