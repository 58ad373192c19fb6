"""Fuzz the Kafka API: `python -m tests.api.kafka.fuzz_kafka --time 60`.

An input is the byte stream of a client. Its frames are the same however it is cut, each is a
request or refused, and a request is written as it was read. A real server on an embedded cluster,
and one whose clients have to log in, meet no bug, answer others, and hold nothing when the client
has left; the process does not grow.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pixy.access import make_credential, user_line
from pixy.config import LimitsConfig, ServedSaslConfig, StorageConfig
from pixy.kafka_messages import MESSAGE_APIS, KafkaHead, MalformedKafkaMessage, parse_head
from pixy.kafka_messages.generated.api_versions import ApiVersionsRequest
from pixy.wire.core import RefusedFrame, WireCore
from tests.api.kafka.conftest import CONFIG
from tests.fakes.kafka_client import kafka_client
from tests.fakes.kafka_server import ServedKafka, serve_kafka
from tests.fakes.node import make_embedded
from tests.fakes.waiting import until
from tests.http2.fuzzing import run

_FRAME_BYTES_MAX = 2000
_ANSWER_S = 0.02
"""Requests that wait for more are left."""
_HANG_S = 20.0
_GROWTH_BYTES_MAX = 150 << 20
_API_VERSIONS = 18
_LIMITS = replace(LimitsConfig(), max_topics=20, max_partitions=60, max_groups=200, max_offsets_bytes=1 << 20)


class Target:
    """Servers in an event loop that runs while an input is checked.

    Args:
        folder: directory of their data.
    """

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._loop.run_until_complete(self._start(folder))
        # Of the process, once it has warmed up.
        self._rss_bytes = self._inputs = 0

    async def _start(self, folder: Path) -> None:
        users = folder / "users"
        credential = make_credential("SCRAM-SHA-256", "secret", bytes(16), 4096)
        users.write_text(user_line("alice", {"SCRAM-SHA-256": credential}))
        storage = replace(StorageConfig(), group_initial_rebalance_delay=0.0)
        grpc = replace(CONFIG.grpc, max_message_bytes=1 << 20)
        self._servers: list[ServedKafka] = []
        for number, sasl in enumerate((ServedSaslConfig(), ServedSaslConfig(str(users)))):
            backend = make_embedded(folder / str(number), storage=storage, limits=_LIMITS)
            config = replace(CONFIG, sasl=sasl, grpc=grpc)
            served = await self._stack.enter_async_context(serve_kafka(backend, config))
            await served.proxy.create_topic("t", 2, {})
            self._servers.append(served)

    def close(self) -> None:
        """Stop the servers, which fails if they have met a bug."""
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()

    def check(self, changed: bytes, chooser: random.Random) -> None:
        """Parse an input, and send it to a server."""
        assert _frames(_chunks(changed, chooser)) == _frames([changed])
        served = chooser.choice((*self._servers[:1] * 3, self._servers[1]))
        self._loop.run_until_complete(self._send(served, changed))
        self._inputs += 1
        if self._inputs % 1000 == 0:
            rss_bytes = _rss_bytes()
            self._rss_bytes = self._rss_bytes or rss_bytes
            assert rss_bytes < self._rss_bytes + _GROWTH_BYTES_MAX, f"{rss_bytes >> 20} MiB"

    async def _send(self, served: ServedKafka, changed: bytes) -> None:
        server = served.server
        async with asyncio.timeout(_HANG_S):
            others = server.connections
            async with kafka_client(served.address) as client:
                with suppress(ConnectionError):
                    client.writer.write(changed)
                    await client.writer.drain()
                with suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(_ANSWER_S):
                        while await client.reader.read(1 << 16):
                            pass
            async with kafka_client(served.address) as client:
                answer = await client.call(_API_VERSIONS, 0, ApiVersionsRequest("", ""))
                assert answer.error_code == 0
            await until(lambda: server.connections <= others and not server.open_calls)
        if served.faults:
            raise AssertionError("a handler has met a bug") from served.faults.pop()
        assert server.memory.total == 0


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _chunks(content: bytes, chooser: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        size = chooser.choice((1, 2, 3, 9, 40, 300))
        yield content[at : at + size]
        at += size


def _frames(chunks: Iterator[bytes] | list[bytes]) -> list[bytes]:
    """The frames of a stream up to the first one that is refused, for which there is b""."""
    core, found = WireCore(lambda _: _FRAME_BYTES_MAX), list[bytes]()
    for chunk in chunks:
        core.receive(chunk)
        try:
            while (frame := core.next_frame()) is not None:
                found.append(frame)
                _check_request(frame)
        except RefusedFrame:
            found.append(b"")
        assert core.input_bytes <= _FRAME_BYTES_MAX + len(chunk)
    return found


def _check_request(frame: bytes) -> None:
    """A request is refused, or what is written of it is read as the same."""
    with suppress(MalformedKafkaMessage):
        head = parse_head(frame)
        api = MESSAGE_APIS.get(head.key)
        if api is None or not api.lowest <= head.version <= api.highest:
            return
        request = api.parse_request(head.version, frame, head.body)
        written = b"".join(api.write_request(head.version, request, "", head.correlation_id))[4:]
        again: KafkaHead = parse_head(written)
        assert api.parse_request(again.version, written, again.body) == request


@contextmanager
def target() -> Iterator[Target]:
    """Running servers."""
    with TemporaryDirectory(prefix="pixy-fuzz-") as folder:
        found = Target(Path(folder))
        try:
            yield found
        finally:
            found.close()


if __name__ == "__main__":
    with target() as servers:
        run("kafka", servers.check)
