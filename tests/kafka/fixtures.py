"""Kafka clusters for tests, each started once per run, and only if a test requests it.

Tests share them: each uses its own names of topics and groups (`kafka_name`). A test that stops or
freezes a broker has to resume it: `kafka_three` restarts stopped brokers.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.kafka.cluster import KafkaCluster

_numbers = iter(range(1_000_000))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A cluster of one broker."""
    yield from _cluster(tmp_path_factory, 1)


@pytest.fixture(scope="session")
def _kafka_three_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    yield from _cluster(tmp_path_factory, 3)


@pytest.fixture
def kafka_three(_kafka_three_session: KafkaCluster) -> KafkaCluster:
    """A cluster of three brokers, all running when the test begins; a test may stop them."""
    _kafka_three_session.start_again()
    return _kafka_three_session


@pytest.fixture
def kafka_name() -> Callable[[str], str]:
    """A factory of unique names for topics and groups."""
    number = next(_numbers)
    return lambda name: f"{name}-{number}"


def _cluster(tmp_path_factory: pytest.TempPathFactory, brokers: int) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp(f"kafka-{brokers}"), brokers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
