"""Requests of nodes that want to join."""

import asyncio
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.joining import check_join, check_joined
from pixy.cluster.nodes import FEATURE_LEVEL, WAITING_MAX
from pixy.errors import FailedPrecondition, PixyError, ResourceExhausted
from pixy.proto.node_calls_pb2 import JoinRequest, JoinResponse, NodeAddress
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster

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


# --- nodes that join and do not exist -------------------------------------------------------------


async def ask_to_join(node: ClusterNode, *, times: int) -> list[int | PixyError]:
    """Ids of as many nodes that join, or why they do not."""
    answers: list[int | PixyError] = []
    for number in range(times):
        request = JoinRequest(
            secret=b"%016d" % number,
            address=f"127.0.0.77:{number + 1}",
            version="1",
            feature_level=FEATURE_LEVEL,
        )
        peers = node.node.peers
        assert peers is not None
        try:
            joined = JoinResponse.FromString(await peers._register(request))
            others = {each.node_id for each in joined.nodes} - {joined.node_id}
            assert others == set(node.node.metadata.started), "no other one that may not exist"
            answers.append(joined.node_id)
        except PixyError as error:
            answers.append(error)
    return answers


def members_of(node: ClusterNode) -> set[frozenset[int]]:
    """Members of the state groups."""
    return {frozenset(each.group.storage.conf_state.members) for each in node.node.state_groups.replicas()}


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_nodes_that_join_and_do_not_exist_change_nothing(tmp_path: Path, count: int) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        real = set(range(1, count + 1))
        answers = await ask_to_join(cluster[1], times=30)
        assert answers[:WAITING_MAX] == list(range(count + 1, count + 1 + WAITING_MAX))
        assert all(isinstance(each, ResourceExhausted) for each in answers[WAITING_MAX:])
        again = await ask_to_join(cluster[1], times=WAITING_MAX)
        assert again == answers[:WAITING_MAX]
        await asyncio.sleep(10)
        await cluster[1].backend.create_topic("topic", 12)
        topic = cluster[1].node.metadata.topics["topic"]
        assert set(topic.replicas) <= {(1,), *permutations(real)}
        for partition in range(12):
            await cluster[1].append(b"value", partition=partition)
        assert members_of(cluster[1]) == {frozenset(real)}
        peers = cluster[1].node.peers
        assert peers is not None
        assert {each.node_id for each in peers.members} == real - {1}

    run_cluster(scenario, tmp_path, count)


@pytest.mark.slow
def test_a_node_joins_once_those_that_do_not_come_are_given_up(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await ask_to_join(cluster[1], times=WAITING_MAX)
        added = await cluster.add()
        await cluster[1].backend.create_topic("topic", 1)
        assert set(cluster[1].node.metadata.topics["topic"].replicas[0]) == {1, added.id}
        await added.append(b"value")
        assert added.node.metadata.waiting == []

    run_cluster(scenario, tmp_path, 1)
