"""A daemon whose Kafka API stands for a Kafka cluster: pixy in front of pixy.

It publishes no staged writes: they are transactions of Kafka, which the API does not serve.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from pixy.access import MECHANISMS, make_credential, user_line
from pixy.backend import Backend
from pixy.backend.kafka import KafkaBackend, KafkaOptions
from pixy.backend.kafka.options import Security
from pixy.errors import UnknownTopic
from tests.integration.daemon import Daemon, proxy_config
from tests.kafka.backends import staging_place

_USER, _PASSWORD = "alice", "secret"
_MECHANISM = "SCRAM-SHA-512"


@contextmanager
def running_pixy(folder: Path, *, users: bool) -> Iterator[Daemon]:
    """A daemon with the Kafka API.

    Args:
        users: clients have to log in.
    """
    config = {
        "kafka_addr": "127.0.0.1:0",
        "grpc": {"max_message_bytes": 8 << 20},
        **proxy_config(
            producer={"max_message_bytes": 4 << 20}, storage={"group_initial_rebalance_delay": "0s"}
        ),
    }
    if users:
        file = folder / "users"
        credentials = {each: make_credential(each, _PASSWORD, bytes(16), 4096) for each in MECHANISMS}
        file.touch(0o600)
        file.write_text(user_line(_USER, credentials))
        config["sasl"] = {"users_file": str(file)}
    with Daemon(folder / "daemon", config) as daemon:
        yield daemon


@asynccontextmanager
async def open_pixy(directory: Path, daemon: Daemon) -> AsyncIterator[Backend]:
    """A started backend at a daemon without topics, stopped at the end."""
    security = Security(mechanism=_MECHANISM, user=_USER, password=_PASSWORD)
    options = KafkaOptions(
        seed_peers=(daemon.addresses["kafka"],),
        client_id="tests",
        security=security if "sasl" in daemon.config else Security(),
    )
    backend = KafkaBackend(options, staging_place(directory / "kafka"))
    await backend.start()
    try:
        for topic in await backend.list_topics():
            with suppress(UnknownTopic):
                await backend.delete_topic(topic.name)
        yield backend
    finally:
        await backend.stop()
