"""A gRPC door on a real embedded log, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest

from pixy.api.grpc import GrpcServer
from pixy.clock import SystemClock
from pixy.config import Config, ConsumerConfig, ProxyConfig
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proxy import Proxy
from tests.fakes.node import make_embedded

if TYPE_CHECKING:
    # Exists for type checkers only.
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub

CONFIG = Config(
    grpc_addr="127.0.0.1:0",
    proxies={
        "first": replace(
            ProxyConfig(), default_partitions=1, consumer=replace(ConsumerConfig(), long_polling_timeout=0.2)
        )
    },
)


class Door:
    """The server, its one proxy, and where it listens."""

    def __init__(self, server: GrpcServer, proxy: Proxy, addresses: dict[str, str]) -> None:
        self.server = server
        self.proxy = proxy
        self.addresses = addresses


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    def fault(error: BaseException) -> None:
        raise AssertionError("a fault") from error

    clock = SystemClock()
    proxy = Proxy(
        "first",
        CONFIG.proxies["first"],
        make_embedded(tmp_path / "data"),
        client_id="me",
        clock=clock,
        rng=Random(1),
        on_fault=fault,
    )
    await proxy.start()
    config = replace(CONFIG, unix_addr=str(tmp_path / "pixy.sock"))
    server = GrpcServer(config, {"": proxy, "first": proxy}, clock)
    addresses = await server.start()
    await server.serve()
    yield Door(server, proxy, addresses)
    await proxy.drain(0)
    await server.stop(0)
    await proxy.stop()


@pytest.fixture
async def channel(door: Door) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(door.addresses["grpc"]) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> KafkaPixyAsyncStub:
    return KafkaPixyStub(channel)
