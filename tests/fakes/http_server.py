"""A real HTTP server of a cluster, and a client of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pixy.api.grpc import server_options
from pixy.api.http import HttpServer
from pixy.backend import Backend
from pixy.clock import SystemClock
from pixy.config import Config
from pixy.proxy import Proxy
from pixy.serving import Server
from tests.fakes.web import WebClient, open_client


@dataclass(slots=True)
class ServedHttp:
    """A running server: a client of it, its address, its parts, and the bugs it has met."""

    client: WebClient
    address: str
    proxy: Proxy
    backend: Any
    server: Server
    faults: list[BaseException] = field(default_factory=list)


@asynccontextmanager
async def serve_http(backend: Backend, config: Config) -> AsyncIterator[ServedHttp]:
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
    http = HttpServer(config, {"": proxy, "first": proxy}, server)
    address = (await http.start())["http"]
    async with open_client(address) as client:
        yield ServedHttp(client, address, proxy, backend, server, faults)
    await proxy.drain(0)
    await server.stop(0)
    await proxy.stop()
    assert faults == []
