"""A storm of requests over HTTP from its own process: `python -m tests.judges.http_storm ADDRESS
SECONDS SEED`.

Sends every route's requests concurrently on many connections, each with a deadline of 1 to 50 ms,
after which the client closes its connection; every fifth one is pipelined behind others. At the end
it prints as JSON how often each route was called, and the outcomes.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

CALLERS = 16
DEADLINE_S_MIN, DEADLINE_S_MAX = 0.001, 0.050
PIPELINED_MAX = 8
TOPICS = [f"storm-{number}" for number in range(4)]
GROUPS = [f"group-{number}" for number in range(3)]
PARTITIONS = 4

Make = Callable[[random.Random], bytes]


def _request(
    method: str, target: str, body: bytes | None = None, content_type: str = "application/json"
) -> bytes:
    fields = ["Host: localhost"]
    if body is not None:
        fields += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    return "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", ""]).encode() + (body or b"")


def _of_topic(method: str, path: str, **parts: str) -> Make:
    """A request for a random topic and group, with a body if there is one."""

    def make(rng: random.Random) -> bytes:
        place = {"partition": rng.randrange(PARTITIONS), "offset": rng.randrange(100)}
        words = {"topic": rng.choice(TOPICS), "group": rng.choice(GROUPS), **place}
        body = parts.get("body")
        return _request(method, path.format(**words), None if body is None else (body % place).encode())

    return make


_RECORD = '{"value": "' + "x" * 1000 + '"}'

ROUTES: Mapping[str, Make] = {
    "produce": _of_topic("POST", "/topics/{topic}/messages?sync", body=_RECORD),
    "produce async": _of_topic("POST", "/clusters/default/topics/{topic}/messages?key=1", body=_RECORD),
    "consume": _of_topic("GET", "/topics/{topic}/messages?group={group}"),
    "consume noAck": _of_topic("GET", "/topics/{topic}/messages?group={group}&noAck"),
    "consume ack": _of_topic(
        "GET", "/topics/{topic}/messages?group={group}&ackPartition={partition}&ackOffset={offset}"
    ),
    "ack": _of_topic(
        "POST", "/topics/{topic}/acks?group={group}&partition={partition}&offset={offset}", body=""
    ),
    "get offsets": _of_topic("GET", "/topics/{topic}/offsets?group={group}"),
    "set offsets": _of_topic(
        "POST", "/topics/{topic}/offsets?group={group}", body='[{"partition": %(partition)d, "offset": -2}]'
    ),
    "consumers": _of_topic("GET", "/topics/{topic}/consumers"),
    "topics": _of_topic("GET", "/topics?withPartitions&withConfig"),
    "topic": _of_topic("GET", "/topics/{topic}?withPartitions"),
    "ping": _of_topic("GET", "/_ping"),
    "v1 produce": _of_topic(
        "POST", "/v1/topics/{topic}/records", body=f'[{_RECORD}, {_RECORD[:-1]}, "partition": 0}}]'
    ),
    "v1 records": _of_topic("GET", "/v1/topics/{topic}/records?group={group}"),
    "v1 records acked": _of_topic("GET", "/v1/topics/{topic}/records?group={group}&ack=auto&wait_ms=10"),
    "v1 acks": _of_topic(
        "POST",
        "/v1/topics/{topic}/acks?group={group}",
        body='[{"partition": %(partition)d, "offset": %(offset)d}]',
    ),
    "v1 peek": _of_topic("GET", "/v1/topics/{topic}/peek?max_records=100"),
    "v1 stream": lambda rng: _request(
        "GET", f"/v1/topics/{rng.choice(TOPICS)}/records?group={rng.choice(GROUPS)}"
    ).replace(b"Host:", b"Accept: application/x-ndjson\r\nHost:"),
    "v1 openapi": _of_topic("GET", "/v1/openapi.json"),
    "no route": _of_topic("POST", "/nothing", body=_RECORD),
}
"""Requests by name."""
_OFTEN = {"produce": 6, "consume": 4, "v1 records": 3, "v1 produce": 3}
"""Weights of routes that are called more often than others."""


class HttpStorm:
    """The requests of one process.

    Args:
        address: address of the daemon.
        seed: seed of all random choices.
    """

    def __init__(self, address: str, seed: int) -> None:
        self._host, self._port = address.rsplit(":", 1)
        self._rng = random.Random(seed)
        self._weights = [_OFTEN.get(name, 1) for name in ROUTES]
        self.calls: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Send for that many seconds."""
        until = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._caller(until))

    async def _caller(self, until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._connection(until)

    async def _connection(self, until: float) -> None:
        """Requests on one connection, until one is given up or the server closes."""
        rng = self._rng
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        try:
            while asyncio.get_running_loop().time() < until:
                names = rng.choices(
                    list(ROUTES),
                    self._weights,
                    k=rng.randrange(2, PIPELINED_MAX) if rng.random() < 0.2 else 1,
                )
                self.calls.update(names)
                writer.write(b"".join(ROUTES[name](rng) for name in names))
                try:
                    async with asyncio.timeout(rng.uniform(DEADLINE_S_MIN, DEADLINE_S_MAX)):
                        for _ in names:
                            self.ends[await self._answer(reader)] += 1
                except TimeoutError:
                    self.ends["given up"] += 1
                    return
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> str:
        """Read an answer; returns its status."""
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Transfer-Encoding: chunked" in head:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        else:
            await reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]))
        return head.split(b" ", 2)[1].decode()


async def _main() -> None:
    storm = HttpStorm(sys.argv[1], int(sys.argv[3]))
    await storm.run(float(sys.argv[2]))
    print(json.dumps({"calls": storm.calls, "ends": storm.ends}))


if __name__ == "__main__":
    asyncio.run(_main())
