"""Nodes tell each other where Kafka's clients reach them."""

from pathlib import Path

from pixy.backend.protocol import BrokerNode
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.fakes.waiting import until


def test_each_node_knows_the_addresses_that_the_others_announce(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        assert (await cluster[1].backend.find_brokers()).brokers == ()
        for number in (1, 2):
            cluster[number].backend.announce_broker(f"h{number}:19095")

        async def known(number: int) -> list[BrokerNode]:
            return [*(await cluster[number].backend.find_brokers()).brokers]

        first, second = (BrokerNode(cluster[number].id, f"h{number}:19095", "") for number in (1, 2))

        async def all_know() -> bool:
            return [await known(number) for number in (1, 2, 3)] == [[second], [first], [first, second]]

        await until(all_know)
        before = cluster[3].backend.broker_nodes
        assert await cluster[3].backend.find_brokers() is before
        await cluster[2].kill()

        async def is_forgotten() -> bool:
            return await known(3) == [first]

        await until(is_forgotten)

    run_cluster(scenario, tmp_path)
