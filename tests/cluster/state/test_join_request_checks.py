"""Requests of nodes that want to join."""

import asyncio
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster import node_commands
from pixy.cluster.state.join_request_checks import check_join, check_joined, check_place
from pixy.cluster.state.nodes import FEATURE_LEVEL, NODES_MAX, WAITING_MAX, NodeInfo
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
        ({"address": "nowhere"}, "cannot join whose peer address is"),
        ({"address": ""}, "cannot join whose peer address is"),
        ({"address": "10.0.0.2:0"}, r'whose peer address is "10.0.0.2:0": its port is 0'),
        ({"address": ":19094"}, "whose peer address .* has no host"),
        ({"address": "0.0.0.0:19094"}, "whose peer address .* all addresses"),
        ({"address": "[::]:19094"}, "whose peer address .* all addresses"),
        ({"address": "224.0.0.1:19094"}, "whose peer address .* many machines"),
        ({"address": "169.254.169.254:80"}, "whose peer address .* link-local"),
        ({"address": "[fe80::1]:19094"}, "whose peer address .* link-local"),
        ({"address": "a\x1b[2J:1"}, "an impossible address"),
        ({"rack": "r" * 10_000}, "an impossible rack"),
        ({"version": "1\n2"}, "an impossible version"),
        ({"feature_level": 2**32 - 1}, "feature level 4294967295 cannot join, at most 1000"),
    ],
)
def test_what_no_node_says_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(FailedPrecondition, match=reason):
        check_join(JoinRequest(**{**GOOD, **changes}))


def known(node_id: int, address: str, secret: bytes = b"another secret..") -> NodeInfo:
    return NodeInfo(node_id, secret, address, "", "", 1, "1")


@pytest.mark.parametrize(
    ("present", "address"),
    [
        ("10.0.0.2:19094", "10.0.0.2:19094"),
        ("Node2:19094", "node2:19094"),
        ("[::1]:19094", "[0:0:0:0:0:0:0:1]:19094"),
    ],
)
def test_a_node_does_not_join_where_another_one_is(present: str, address: str) -> None:
    request = JoinRequest(**{**GOOD, "address": address})
    with pytest.raises(FailedPrecondition, match=r"cannot join at .*: node 7 is there"):
        check_place(request, [known(3, "10.0.0.3:19094"), known(7, present)])


def test_a_node_joins_again_where_it_is_itself_and_where_nobody_is() -> None:
    check_place(JoinRequest(**GOOD), [known(2, "10.0.0.2:19094", GOOD["secret"]), known(3, "10.0.0.2:19095")])


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


def test_an_answer_names_no_more_nodes_than_a_cluster_may_have() -> None:
    nodes = [NodeAddress(node_id=1 + number, address="a:1") for number in range(2 * NODES_MAX + 1)]
    check_joined(JoinResponse(cluster_id=bytes(16), node_id=2, nodes=nodes[1:]))
    with pytest.raises(FailedPrecondition, match="it names 201 nodes, at most 200 are possible"):
        check_joined(JoinResponse(cluster_id=bytes(16), node_id=2, nodes=nodes))


def test_a_feature_level_that_no_release_has_is_refused() -> None:
    check_joined(JoinResponse(cluster_id=bytes(16), node_id=2, feature_level=FEATURE_LEVEL))
    with pytest.raises(FailedPrecondition, match="feature level 1001, at most 1000"):
        check_joined(JoinResponse(cluster_id=bytes(16), node_id=2, feature_level=1001))


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
def test_nobody_joins_at_the_address_of_a_node_that_is_there(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        peers = cluster[1].node.peers
        assert peers is not None
        for node in cluster[1].node.metadata.nodes.values():
            request = JoinRequest(
                secret=b"not of this node", address=node.address, version="1", feature_level=FEATURE_LEVEL
            )
            with pytest.raises(FailedPrecondition, match=f"node {node.node_id} is there"):
                await peers._register(request)
        assert len(cluster[1].node.metadata.nodes) == 2

    run_cluster(scenario, tmp_path, 2)


@pytest.mark.slow
def test_a_node_joins_once_those_that_do_not_come_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_commands, "_FIRST_START_S", 20.0)

    async def scenario(cluster: NodeCluster) -> None:
        await ask_to_join(cluster[1], times=WAITING_MAX)
        added = await cluster.add()
        await cluster[1].backend.create_topic("topic", 1)
        assert set(cluster[1].node.metadata.topics["topic"].replicas[0]) == {1, added.id}
        await added.append(b"value")
        assert added.node.metadata.waiting == []

    run_cluster(scenario, tmp_path, 1)
