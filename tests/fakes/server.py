"""A real gRPC server, by default for an in-memory cluster, for tests of services and commands."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Generic, TypeVar

from pixy.api.grpc import GrpcServer, server_options
from pixy.backend import Backend
from pixy.clock import Clock, SystemClock
from pixy.config import Config, ProxyConfig
from pixy.proxy import Proxy
from pixy.serving import Server
from tests.fakes.backend import FakeBackend

B = TypeVar("B", bound=Backend)

CONFIG = Config(grpc_addr="127.0.0.1:0", proxies={"first": replace(ProxyConfig(), default_partitions=3)})


class LoneGrpcServer(GrpcServer):
    """gRPC on a server of its own."""

    def __init__(
        self,
        config: Config,
        proxies: Mapping[str, Proxy],
        clock: Clock,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self.server = Server(server_options(config.grpc, config.client_share_percent), clock, on_fault)
        super().__init__(config, proxies, self.server)

    async def stop(self, grace: float) -> None:
        """See `Server.stop`."""
        await self.server.stop(grace)


@dataclass(slots=True)
class ServedCluster(Generic[B]):
    """A running server: its address, its backend, and the bugs it has met."""

    address: str
    proxy: Proxy
    backend: B
    faults: list[BaseException] = field(default_factory=list)


FakeServer = ServedCluster[FakeBackend]


@asynccontextmanager
async def serve_cluster(backend: FakeBackend | None = None) -> AsyncIterator[FakeServer]:
    """Serve an in-memory cluster, `first`, whose topics have three partitions by default."""
    async with serve_backend(backend or FakeBackend()) as served:
        yield served


@asynccontextmanager
async def serve_backend(backend: B, config: Config = CONFIG) -> AsyncIterator[ServedCluster[B]]:
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
    server = LoneGrpcServer(config, {"": proxy, "first": proxy}, clock, faults.append)
    addresses = await server.start()
    server.set_health(serving=True)
    yield ServedCluster(addresses["grpc"], proxy, backend, faults)
    await proxy.drain(0)
    await server.stop(0)
    await proxy.stop()
