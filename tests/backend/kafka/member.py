"""Members of consumer groups on a real cluster: `groups`, `offsets` and `group_list` of one
process.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.coordinators import Coordinators
from pixy.backend.kafka.group_list import GroupList
from pixy.backend.kafka.groups import GroupEnvironment, Groups, KafkaMembership
from pixy.backend.kafka.offsets import GroupOffsets
from pixy.backend.kafka.options import KafkaOptions
from pixy.kafka_protocol.messages import CREATE_TOPICS
from tests.conformance.support import PATIENCE, Assignments
from tests.fakes.waiting import until
from tests.kafka.cluster import KafkaCluster


class Process:
    """Consumer groups of one daemon."""

    def __init__(self, client: KafkaClient, options: KafkaOptions) -> None:
        self.client = client
        self.faults: list[BaseException] = []
        self.coordinators = Coordinators(client)
        environment = GroupEnvironment(client, self.coordinators, options, self.faults.append)
        # What this process owned, by group, after each change.
        self.owned: list[tuple[str, dict[str, Sequence[int]]]] = []
        self.groups = Groups(environment, lambda group, owned: self.owned.append((group, dict(owned))))
        self.group_list = GroupList(client, self.coordinators)
        self.offsets = GroupOffsets(client, self.coordinators, self.groups, self.group_list)

    async def join(
        self, group: str, topics: Sequence[str], client_id: str = "me", on_revocation: Any = None
    ) -> tuple[KafkaMembership, Assignments]:
        assignments = Assignments()
        async with asyncio.timeout(PATIENCE):
            member = await self.groups.join(group, client_id, topics, assignments, on_revocation)
        return member, assignments


@asynccontextmanager
async def open_process(cluster: KafkaCluster, **options: Any) -> AsyncIterator[Process]:
    """A connected process, which leaves its groups at the end."""
    defaults = {"session_timeout_s": 3.0, "rebalance_timeout_s": 3.0, "rebalance_delay_s": 0.0}
    kafka_options = KafkaOptions(
        tuple(cluster.addresses), "pixy", metadata_max_age_s=1.0, **{**defaults, **options}
    )
    client = KafkaClient(kafka_options)
    await client.start()
    process = Process(client, kafka_options)
    try:
        yield process
    finally:
        await process.groups.stop()
        await client.stop()
        assert process.faults == []


async def create_topic(process: Process, name: str, partitions: int) -> None:
    """Create a topic, and wait until it can be used."""
    created = await process.client.send_any(
        CREATE_TOPICS([(name, partitions, -1, [], [], {})], 10_000, False, {})
    )
    assert created.topics[0][2] == 0, created

    async def is_led() -> bool:  # brokers learn of it one after the other
        await process.client.refresh([name])
        return process.client.metadata.leader(name, partitions - 1) >= 0

    await until(is_led)
