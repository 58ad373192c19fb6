"""A thousand connections of Kafka's protocol, and the memory that they take."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pixy.kafka_messages import MESSAGE_APIS
from pixy.kafka_messages.generated.api_versions import ApiVersionsRequest
from pixy.kafka_messages.generated.metadata import MetadataRequest, MetadataRequestTopic
from tests.api.kafka.support import FETCH, METADATA, PRODUCE, batch, fetch_request, produce_request
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config

pytestmark = [pytest.mark.process, pytest.mark.slow]

CONNECTIONS = 1000
PARTITIONS = 4
API_VERSIONS = 18
RECORDS = 150
BATCH = batch(*[b"x" * 100] * RECORDS)
"""As Java's producer makes them by default: 16 KiB."""
MEMORY_MAX = 300 << 20
SECONDS = 120.0


@pytest.fixture
def daemon(make_daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(Daemon, "forks", False)  # a fork has the memory of its parent
    with make_daemon({"kafka_addr": "127.0.0.1:0", **proxy_config(default_partitions=PARTITIONS)}) as daemon:
        yield daemon


class Connections:
    """Connections, and the memory that a daemon has had at most.

    Args:
        stack: closes them.
    """

    def __init__(self, daemon: Daemon, stack: ExitStack) -> None:
        self._daemon = daemon
        host, port = daemon.addresses["kafka"].rsplit(":", 1)
        self.all = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
            for _ in range(CONNECTIONS)
        ]
        self.largest = 0

    def send(self, key: int, version: int, request: Any) -> None:
        """Send a request on each."""
        frame = b"".join(MESSAGE_APIS[key].write_request(version, request, "many", 1))
        for each in self.all:
            each.sendall(frame)
        self.look()

    def answered(self, key: int, version: int, check: Callable[[Any], object]) -> None:
        """Read the answer of each."""
        api = MESSAGE_APIS[key]
        for each in self.all:
            frame = received(each, int.from_bytes(received(each, 4), "big"))
            assert check(api.parse_response(version, frame, api.body_of_response(version)))
        self.look()

    def look(self) -> None:
        """Look at the memory of the daemon."""
        self.largest = max(self.largest, self._daemon.rss_bytes())


def received(sock: socket.socket, size: int) -> bytes:
    """As many bytes."""
    found = bytearray()
    while len(found) < size:
        part = sock.recv(size - len(found))
        assert part, "the daemon has closed a connection"
        found += part
    return bytes(found)


def is_written(answer: Any) -> bool:
    return not any(part.error_code for part in answer.responses[0].partition_responses)


def has_records(answer: Any) -> bool:
    return any(len(part.records) for part in answer.responses[0].partitions)


def test_a_thousand_clients_write_wait_and_read_within_300_mib(daemon: Daemon) -> None:
    with ExitStack() as stack:
        clients = Connections(daemon, stack)
        clients.send(API_VERSIONS, 3, ApiVersionsRequest("tests", "1"))
        clients.answered(API_VERSIONS, 3, lambda answer: answer.api_keys)
        clients.send(METADATA, 12, MetadataRequest([MetadataRequestTopic(name="t")]))
        clients.answered(METADATA, 12, lambda answer: len(answer.topics[0].partitions) == PARTITIONS)
        clients.send(PRODUCE, 9, produce_request("t", {0: BATCH}))
        clients.answered(PRODUCE, 9, is_written)
        waiting = fetch_request("t", {0: CONNECTIONS * RECORDS, 1: 0, 2: 0, 3: 0}, max_wait_ms=100_000)
        clients.send(FETCH, 12, waiting)
        write = produce_request("t", dict.fromkeys(range(PARTITIONS), BATCH))
        with socket.create_connection(clients.all[0].getpeername(), timeout=SECONDS) as other:
            other.sendall(b"".join(MESSAGE_APIS[PRODUCE].write_request(9, write, "other", 2)))
            clients.answered(FETCH, 12, has_records)
    print(f"{clients.largest >> 20} MiB")
    assert clients.largest <= MEMORY_MAX
    daemon.stop()
