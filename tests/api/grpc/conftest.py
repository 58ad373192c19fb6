"""A gRPC server on a real embedded log, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest

from pixy.backend import EmbeddedBackend
from pixy.clock import SystemClock
from pixy.config import Config, ConsumerConfig, LimitsConfig, ProducerConfig, ProxyConfig, StorageConfig
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proxy import Proxy
from tests.api.grpc.bulk import ServedBulk, serve
from tests.fakes.backend import FakeBackend
from tests.fakes.node import make_embedded
from tests.fakes.server import LoneGrpcServer

if TYPE_CHECKING:
    # For type checkers only.
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub

CONFIG = Config(
    grpc_addr="127.0.0.1:0",
    proxies={
        "first": replace(
            ProxyConfig(),
            default_partitions=1,
            producer=replace(ProducerConfig(), channel_buffer_size=1),
            consumer=replace(
                ConsumerConfig(),
                long_polling_timeout=60,
                channel_buffer_size=2,
                max_subscriptions=40,
                max_waiting_acks=100,
                max_unpacked_bytes=2 << 20,
            ),
        )
    },
)


class ServedNode:
    """The server, its one proxy and backend, its address, and the bugs reported."""

    def __init__(
        self,
        server: LoneGrpcServer,
        proxy: Proxy,
        backend: EmbeddedBackend,
        addresses: dict[str, str],
        faults: list[BaseException],
    ) -> None:
        self.server = server
        self.proxy = proxy
        self.backend = backend
        self.addresses = addresses
        self.faults = faults


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tick connections ten times as often, so that waiting for a tick is quick."""
    monkeypatch.setattr("pixy.serving.server._TICK_S", 0.1)


@pytest.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ServedNode]:
    clock = SystemClock()
    faults: list[BaseException] = []
    backend = make_embedded(
        tmp_path / "data",
        storage=replace(StorageConfig(), tail_cache_bytes=0),
        limits=LimitsConfig(max_topics=20, max_partitions=100, max_groups=64, max_offsets_bytes=7 << 20),
    )
    options = CONFIG.proxies["first"]
    timeout = getattr(request, "param", options.consumer.long_polling_timeout)
    proxy = Proxy(
        "first",
        replace(options, consumer=replace(options.consumer, long_polling_timeout=timeout)),
        backend,
        client_id="me",
        clock=clock,
        rng=Random(1),
        on_fault=faults.append,
        client_share_percent=50,
    )
    await proxy.start()
    config = replace(CONFIG, unix_addr=str(tmp_path / "pixy.sock"))
    server = LoneGrpcServer(config, {"": proxy, "first": proxy}, clock, faults.append)
    addresses = await server.start()
    server.set_health(serving=True)
    yield ServedNode(server, proxy, backend, addresses, faults)
    await proxy.drain(0)
    await server.stop(0)
    await proxy.stop()


@pytest.fixture
async def channel(served: ServedNode) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(served.addresses["grpc"]) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> KafkaPixyAsyncStub:
    return KafkaPixyStub(channel)


@pytest.fixture(params=["fake", "embedded"])
async def bulk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServedBulk]:
    """A bulk log server, on every kind of cluster."""
    cluster = FakeBackend() if request.param == "fake" else make_embedded(tmp_path / "data")
    async with serve(cluster) as opened:
        yield opened


@pytest.fixture
async def fake() -> AsyncIterator[tuple[ServedBulk, FakeBackend]]:
    """A bulk log server on a fake cluster with controlled timing."""
    backend = FakeBackend()
    async with serve(backend) as opened:
        yield opened, backend
