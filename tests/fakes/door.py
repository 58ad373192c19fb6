"""A real gRPC server on a cluster in memory: what tests of services and commands talk to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random

from pixy.api.grpc import GrpcServer
from pixy.clock import SystemClock
from pixy.config import Config, ProxyConfig
from pixy.proxy import Proxy
from tests.fakes.backend import FakeBackend

__all__ = ["FakeDoor", "open_door"]

CONFIG = Config(grpc_addr="127.0.0.1:0", proxies={"first": replace(ProxyConfig(), default_partitions=3)})


@dataclass(slots=True)
class FakeDoor:
    """Where it listens, what stands behind it, and the bugs that it met."""

    address: str
    proxy: Proxy
    backend: FakeBackend
    faults: list[BaseException] = field(default_factory=list)


@asynccontextmanager
async def open_door(backend: FakeBackend | None = None) -> AsyncIterator[FakeDoor]:
    """Serves one cluster, `first`, whose topics get three partitions unless somebody says otherwise."""
    backend = backend or FakeBackend()
    faults: list[BaseException] = []
    clock = SystemClock()
    proxy = Proxy(
        "first",
        CONFIG.proxies["first"],
        backend,
        client_id="me",
        clock=clock,
        rng=Random(1),
        on_fault=faults.append,
    )
    await proxy.start()
    server = GrpcServer(CONFIG, {"": proxy, "first": proxy}, clock, faults.append)
    addresses = await server.start()
    await server.serve()
    yield FakeDoor(addresses["grpc"], proxy, backend, faults)
    await proxy.drain(0)
    await server.stop(0)
    await proxy.stop()
