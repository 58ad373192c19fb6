"""A server of kafka-pixy's HTTP API on an embedded cluster."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pixy.config import Config, ConsumerConfig, ProxyConfig, StorageConfig
from tests.fakes.backend import FakeBackend
from tests.fakes.http_server import ServedHttp, serve_http
from tests.fakes.node import make_embedded

CONFIG = Config(
    tcp_addr="127.0.0.1:0",
    proxies={
        "first": replace(
            ProxyConfig(),
            default_partitions=4,
            consumer=replace(ConsumerConfig(), long_polling_timeout=60, initial_offset="oldest"),
        )
    },
)


@pytest.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ServedHttp]:
    backend = make_embedded(tmp_path / "data", storage=replace(StorageConfig(), tail_cache_bytes=0))
    first = CONFIG.proxies["first"]
    timeout = getattr(request, "param", first.consumer.long_polling_timeout)
    consumer = replace(first.consumer, long_polling_timeout=timeout)
    config = replace(CONFIG, proxies={"first": replace(first, consumer=consumer)})
    async with serve_http(backend, config) as served:
        yield served


@pytest.fixture
async def fake() -> AsyncIterator[ServedHttp]:
    """On a cluster in memory, with controlled timing."""
    async with serve_http(FakeBackend(), CONFIG) as served:
        yield served
