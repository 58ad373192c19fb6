"""Proxies on several nodes: clients produce and consume at any of them, and go to another one."""

import asyncio
from pathlib import Path
from random import Random

from pixy.config import ProxyConfig
from pixy.consume import Offer
from pixy.errors import PixyError
from pixy.proxy import Proxy
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster


class Client:
    """A client of one node."""

    def __init__(self, node: ClusterNode) -> None:
        self.proxy = Proxy(
            "default",
            ProxyConfig(),
            node.backend,
            client_id=f"node-{node.number}",
            clock=node.clock,
            rng=Random(1),
            on_fault=node.faults.append,
        )

    async def produce(self, value: bytes, key: bytes | None = None) -> tuple[int, int]:
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

        def done(_: object, partition: int, offset: int, error: PixyError | None) -> None:
            if error is None:
                answer.set_result((partition, offset))
            else:
                answer.set_exception(error)

        self.proxy.produce("topic", key, value, (), done)
        return await answer

    async def consume(self) -> Offer:
        answer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()

        def done(offer: Offer | None, error: PixyError | None) -> None:
            if offer is not None:
                offer.delivered()
                answer.set_result(offer)
            elif error is not None:
                answer.set_exception(error)

        self.proxy.consume("group", "topic", done)
        return await answer

    async def ack(self, partition: int, offset: int) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PixyError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.proxy.ack("group", "topic", partition, offset, done)
        await answer


def clients_of(cluster: NodeCluster) -> dict[int, Client]:
    return {number: Client(node) for number, node in cluster.nodes.items()}


async def drain(clients: dict[int, Client]) -> None:
    await asyncio.gather(*(client.proxy.drain(1.0) for client in clients.values()))


def test_a_group_moves_to_another_node_with_its_offsets(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        clients = clients_of(cluster)
        for number in range(3):
            await clients[number + 1].produce(b"%d" % number, b"key")
        first = await clients[1].consume()
        await clients[1].ack(first.partition, first.record.offset)
        await asyncio.sleep(1)  # acks are committed now and then
        positions = await clients[3].proxy.get_offsets("group", "topic")
        assert [each.offset for each in positions if each.end] == [first.record.offset + 1]
        await clients[1].proxy.drain(1.0)
        second = await clients[2].consume()
        assert (first.record.value, second.record.value) == (b"0", b"1")
        await drain(clients)

    run_cluster(scenario, tmp_path)
