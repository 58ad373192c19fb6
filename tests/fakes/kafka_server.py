"""A real server of Kafka's protocol on any cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pixy.api.grpc import server_options
from pixy.api.kafka import KafkaServer
from pixy.backend import Backend
from pixy.clock import SystemClock
from pixy.config import Config
from pixy.proxy import Proxy
from pixy.serving import Server
from tests.fakes.kafka_client import RawKafkaClient, kafka_client


@dataclass(slots=True)
class ServedKafka:
    """A running server: a client of it, its address, its parts, and the bugs it has met."""

    client: RawKafkaClient
    address: str
    proxy: Proxy
    backend: Any
    server: Server
    faults: list[BaseException] = field(default_factory=list)


@asynccontextmanager
async def serve_kafka(backend: Backend, config: Config) -> AsyncIterator[ServedKafka]:
    """Serve any backend as cluster `first`, which `config` must contain."""
    faults: list[BaseException] = []
    clock = SystemClock()
    proxy = Proxy(
        "first",
        config.proxies["first"],
        backend,
        client_id="me",
        clock=clock,
        rng=Random(1),
        on_fault=faults.append,
        client_share_percent=config.client_share_percent,
    )
    await proxy.start()
    server = Server(server_options(config.grpc, config.client_share_percent), clock, faults.append)
    address = (await KafkaServer(config, proxy, server).start())["kafka"]
    try:
        async with kafka_client(address) as client:
            yield ServedKafka(client, address, proxy, backend, server, faults)
    finally:
        await proxy.drain(0)
        await server.stop(0)
        await proxy.stop()
    assert faults == []
    assert server.open_calls == 0
