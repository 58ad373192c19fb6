"""Kafka clusters for tests, each started once for the whole run, and only if a test asks for it.

Tests share them: each uses topics and groups of its own names (`kafka_name`). Who ends or pauses a broker has to have it running again
at the end of the test: `kafka_three` starts again what does not run.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.kafka.cluster import KafkaCluster

__all__ = ["_kafka_three_session", "kafka", "kafka_name", "kafka_three"]

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
    """A cluster of three brokers, all of which run when the test begins; a test may end them."""
    _kafka_three_session.start_again()
    return _kafka_three_session


@pytest.fixture
def kafka_name() -> Callable[[str], str]:
    """Makes names for topics and groups that no other test has."""
    number = next(_numbers)
    return lambda name: f"{name}-{number}"


def _cluster(tmp_path_factory: pytest.TempPathFactory, brokers: int) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp(f"kafka-{brokers}"), brokers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
