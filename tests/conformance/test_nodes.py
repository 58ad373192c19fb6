"""A cluster of one node: its status, and nodes that leave."""

import pytest

from pixy.backend import Backend
from pixy.cluster import problems
from pixy.errors import FailedPrecondition, NotFound, ShuttingDown
from tests.conformance.implementations import Capability

pytestmark = pytest.mark.needs(Capability.LONE_NODE)


async def test_a_cluster_of_one_has_one_node_and_no_problems(backend: Backend) -> None:
    status = await backend.cluster_status()
    (node,) = status.nodes
    assert (node.is_self, node.up, node.problem) == (True, True, "")
    assert status.self_id == node.node_id
    assert problems(status) == ()


async def test_clients_of_kafkas_protocol_ask_this_node_for_everything(backend: Backend) -> None:
    nodes = backend.broker_nodes
    assert (nodes.own_id, nodes.brokers) == ((await backend.cluster_status()).self_id, ())
    assert nodes.cluster_id
    assert await backend.find_brokers() == nodes


@pytest.mark.parametrize("how", ["remove_node", "forget_node"])
async def test_the_only_node_cannot_leave_and_others_are_unknown(backend: Backend, how: str) -> None:
    only = (await backend.cluster_status()).self_id
    with pytest.raises(FailedPrecondition, match=f"node {only} is the only"):
        await getattr(backend, how)(only)
    with pytest.raises(NotFound, match=f"no node {only + 1}"):
        await getattr(backend, how)(only + 1)


async def test_no_node_leaves_after_stop(backend: Backend) -> None:
    await backend.stop()
    with pytest.raises(ShuttingDown):
        await backend.remove_node(1)
    with pytest.raises(ShuttingDown):
        await backend.forget_node(1)
