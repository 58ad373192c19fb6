"""A group of Kafka clients while nodes are killed, cut off and started again, on virtual time: no
acknowledged commit is lost or overtaken, no partition has two owners in a generation, and the group
comes back.
"""

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from pixy.backend import GroupCommit, TopicPartition
from pixy.classic_groups import GroupCode
from tests.backend.group_members import GROUP
from tests.backend.kafka_clients import RETRIABLE, KafkaClient, coordinator
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

CHAOS_S, HEALED_S = 60, 60
PATIENCE_S = 1.0
"""Time after which a client takes a commit for lost, and asks again."""


class Ledger:
    """All that clients were told, in the order of the answers.

    Attributes:
        acked: the last acknowledged offset by partition.
        owners: members by generation, partition.
    """

    def __init__(self) -> None:
        self.acked: dict[int, int] = defaultdict(int)
        self.owners: dict[tuple[int, int], str] = {}
        self.commits = 0

    def owned(self, worker: "Worker") -> None:
        for partition in worker.partitions:
            owner = self.owners.setdefault((worker.generation, partition), worker.member_id)
            assert owner == worker.member_id, f"{partition} has two owners in {worker.generation}"

    def committed(self, partition: int, offset: int) -> None:
        assert offset > self.acked[partition], "an older owner has committed later"
        self.acked[partition] = offset
        self.commits += 1

    def fetched(self, partition: int, before: int, offset: int) -> None:
        assert offset >= before, f"an acknowledged commit of partition {partition} is lost"


class Worker(KafkaClient):
    """A member that counts in each partition that it owns, by commits."""

    def __init__(self, cluster: NodeCluster, name: str, ledger: Ledger, random: Random) -> None:
        super().__init__(cluster, name)
        self.ledger = ledger
        self.random = random
        self.partitions: tuple[int, ...] = ()

    async def run(self) -> None:
        while True:
            self.partitions = ()
            joined = await self.join()
            assert joined.code is GroupCode.NONE
            synced = await self.sync(joined)
            if synced.code is not GroupCode.NONE:
                if synced.code is GroupCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                continue
            self.partitions = self.assigned.get("topic", ())
            self.ledger.owned(self)
            positions = {partition: await self.position(partition) for partition in self.partitions}
            await self.count(positions)

    async def count(self, positions: dict[int, int]) -> None:
        while True:
            code = await self.heartbeat()
            await asyncio.sleep(self.random.uniform(0.1, 0.6))
            if code is not GroupCode.NONE:
                if code is GroupCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                return
            for partition, position in positions.items():
                if self.random.random() < 0.3:
                    await self.position(partition)
                key = TopicPartition("topic", partition)
                commit = GroupCommit(self.member_id, None, self.generation, {key: (position + 1, "")})
                node = coordinator(self.cluster)
                if node is None:
                    continue
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        code = (await node.backend.classic_groups.commit(GROUP, commit))[key]
                except TimeoutError:
                    code = GroupCode.COORDINATOR_NOT_AVAILABLE
                if code is GroupCode.NONE:
                    positions[partition] = position + 1
                    self.ledger.committed(partition, position + 1)
                elif code in RETRIABLE:
                    # It may be there: whoever asks again must not go back.
                    positions[partition] = max(position, await self.position(partition))
                else:
                    return

    async def position(self, partition: int) -> int:
        """The committed offset."""
        key = TopicPartition("topic", partition)
        while True:
            node, before = coordinator(self.cluster), self.ledger.acked[partition]
            if node is not None:
                code, found = await node.backend.classic_groups.committed(GROUP, {"topic": [partition]})
                if code is GroupCode.NONE:
                    offset = found[key].offset if key in found else 0
                    self.ledger.fetched(partition, before, offset)
                    return offset
            await asyncio.sleep(0.1)


async def chaos(cluster: NodeCluster, random: Random) -> None:
    """One node at a time is killed or cut off, and comes back."""
    loop = asyncio.get_running_loop()
    end = loop.time() + CHAOS_S
    while loop.time() < end:
        node = random.choice([*cluster.nodes.values()])
        if random.random() < 0.5:
            await node.kill()
            await asyncio.sleep(random.uniform(0.1, 4))
            await node.start()
        else:
            cluster.split(node.number)
            await asyncio.sleep(random.uniform(0.1, 6))
            cluster.network.heal()
        await asyncio.sleep(random.uniform(0.5, 5))


@pytest.mark.parametrize("seed", range(4))
def test_a_group_survives_its_coordinators(tmp_path: Path, seed: int) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        random, ledger = Random(seed), Ledger()
        await cluster[1].backend.create_topic("topic", 3)
        workers = [Worker(cluster, f"worker-{number}", ledger, random) for number in range(3)]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            await chaos(cluster, random)
            before = ledger.commits
            assert before > 20, "it never worked"
            async with asyncio.timeout(HEALED_S):
                await asyncio.sleep(20)  # longer than a session
                await until(lambda: is_shared(workers))
            before = ledger.commits
            await asyncio.sleep(5)
            assert ledger.commits > before
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    run_cluster(scenario, tmp_path, seed=seed)


def is_shared(workers: list[Worker]) -> bool:
    """True if all are in one generation, and each partition has an owner."""
    owned = sorted(partition for worker in workers for partition in worker.partitions)
    return len({worker.generation for worker in workers}) == 1 and owned == [0, 1, 2]
