"""A server of Kafka's protocol on an embedded cluster."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pixy.config import Config, ProxyConfig, StorageConfig
from tests.fakes.backend import FakeBackend
from tests.fakes.kafka_server import ServedKafka, serve_kafka
from tests.fakes.node import make_embedded

CONFIG = Config(kafka_addr="127.0.0.1:0", proxies={"first": replace(ProxyConfig(), default_partitions=4)})


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedKafka]:
    backend = make_embedded(tmp_path / "data")
    async with serve_kafka(backend, CONFIG) as served:
        yield served


@pytest.fixture
async def from_files(tmp_path: Path) -> AsyncIterator[ServedKafka]:
    """Without records in memory."""
    backend = make_embedded(tmp_path / "data", storage=replace(StorageConfig(), tail_cache_bytes=0))
    async with serve_kafka(backend, CONFIG) as served:
        yield served


@pytest.fixture
async def fake() -> AsyncIterator[ServedKafka]:
    """On a cluster in memory, with controlled timing."""
    async with serve_kafka(FakeBackend(), CONFIG) as served:
        yield served
