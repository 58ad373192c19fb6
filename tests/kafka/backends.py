"""Backends on the Kafka clusters of the tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.protocol.admin import DeleteGroupsRequest

from pixy.backend.kafka import KafkaBackend, KafkaOptions, StagingPlace
from pixy.backend.kafka.client import Dial, KafkaClient
from pixy.clock import SystemClock
from pixy.config import StagingConfig
from pixy.kafka_protocol.group_messages import LIST_GROUPS
from pixy.storage import RealDisk, ThreadWorker
from tests.kafka.cluster import KafkaCluster


def kafka_options(cluster: KafkaCluster, **changed: Any) -> KafkaOptions:
    """Options for a cluster, with defaults for those not given."""
    return KafkaOptions(**{"seed_peers": tuple(cluster.addresses), "client_id": "tests", **changed})


async def start_again(cluster: KafkaCluster, *node_ids: int) -> None:
    """`KafkaCluster.start_again` without blocking the event loop."""
    cluster.start_again_nowait(*node_ids)
    await asyncio.to_thread(cluster.wait_ready)


def staging_place(
    directory: Path, config: StagingConfig | None = None, client_share_percent: int = 100
) -> StagingPlace:
    """A staging place in a directory."""
    return StagingPlace(
        RealDisk(), directory, ThreadWorker, SystemClock(), config or StagingConfig(), client_share_percent
    )


def make_kafka(
    cluster: KafkaCluster, directory: Path, dial: Dial = create_conn, **changed: Any
) -> KafkaBackend:
    """An unstarted backend with its stages in a directory."""
    return KafkaBackend(kafka_options(cluster, **changed), staging_place(directory), dial=dial)


@asynccontextmanager
async def open_kafka(
    cluster: KafkaCluster, dial: Dial = create_conn, directory: Path | None = None, **changed: Any
) -> AsyncIterator[KafkaBackend]:
    """A started backend, stopped at the end. Without a directory its stages are removed with it."""
    with TemporaryDirectory(prefix="pixy-stages-") as temporary:
        backend = make_kafka(cluster, directory or Path(temporary) / "kafka", dial, **changed)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.stop()


async def forget_sinks(cluster: KafkaCluster) -> None:
    """Delete the groups of sinks, so that each test begins with none."""
    client = KafkaClient(kafka_options(cluster))
    await client.start()
    try:
        for broker in cluster.brokers:
            listed = await client.send(broker.node_id, LIST_GROUPS([], {}))
            names = [group for group, *_ in listed.groups if group.startswith("pixy-sink-")]
            if names:
                answer = await client.send(broker.node_id, DeleteGroupsRequest(names))
                assert [code for _, code in answer.results] == [0] * len(names)
    finally:
        await client.stop()
