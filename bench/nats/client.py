"""A load client for NATS JetStream on plain sockets: acknowledged publishes, or single messages
pulled and acked.

    python -m bench.nats.client ADDRESS publish|pull CONNECTIONS IN_FLIGHT SECONDS
    python -m bench.nats.client ADDRESS fill|rewind COUNT
    python -m bench.nats.client ADDRESS replicate REPLICAS

`publish` waits for the stream's answer to each message, as Produce does. `pull` requests one
message at a time and acks it on receipt, as ConsumeNAck with auto ack does. Both keep IN_FLIGHT
requests in flight on each connection. Prints one JSON object: done, per_second, mean_ms.
`replicate` creates the stream to publish to, with so many replicas, and prints the name of the
server that leads it.
"""

import json
import re
import selectors
import socket
import sys
import time
from typing import Any

_MESSAGE = bytes(100)
_WARM_UP_SECONDS = 0.3
_SECONDS_MAX = 30.0
_BURST = 500
_TRY_SECONDS = 2.0
_PULL = "$JS.API.CONSUMER.MSG.NEXT.filled.bench"
_PULLED = re.compile(rb"MSG \S+ \d+ (\$JS\.ACK\S+) %d\r\n" % len(_MESSAGE))


class _NatsClient:
    """One connection."""

    def __init__(self, address: str, timeout: float = _SECONDS_MAX) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Reply subject of this connection alone.
        self._inbox = b"inbox.%d" % self.socket.getsockname()[1]
        hello = b'CONNECT {"verbose":false,"headers":false}\r\nSUB %s 1\r\nPING\r\n'
        self.socket.sendall(hello % self._inbox)
        self._rest = b""
        while b"PONG" not in self._rest:
            self._rest += self.socket.recv(65_536)
        self._rest = b""

    def call(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """Call JetStream's API."""
        self.request(f"$JS.API.{subject}", json.dumps(request).encode())
        answer = b""
        # The server may also tell of other servers in between, with INFO.
        while b"MSG " not in answer or not answer.endswith(b"}\r\n"):
            answer += self.socket.recv(65_536)
        body = answer[answer.index(b"MSG ") :].split(b"\r\n")[1]
        found: dict[str, Any] = json.loads(body)
        if "error" in found and "not found" not in found["error"]["description"]:
            raise RuntimeError(answer.decode())
        return found

    def request(self, subject: str, body: bytes, count: int = 1) -> None:
        """Send a message with a reply subject, `count` times."""
        head = f"PUB {subject} {self._inbox.decode()} {len(body)}\r\n"
        self.socket.sendall((head.encode() + body + b"\r\n") * count)

    def published(self) -> int:
        """Number of messages answered since the last time."""
        chunk = self._rest + self.socket.recv(262_144)
        if b'"error":' in chunk:
            raise RuntimeError(chunk.decode(errors="replace"))
        lines = chunk.split(b'"seq":')
        self._rest = lines[-1][-8:] if len(lines) > 1 else chunk[-8:]
        return len(lines) - 1

    def pulled(self) -> int:
        """Number of messages received since the last time; acks them."""
        chunk = self._rest + self.socket.recv(262_144)
        acks, at = [], 0
        for match in _PULLED.finditer(chunk):
            if match.end() + len(_MESSAGE) + 2 > len(chunk):
                break
            acks.append(b"PUB %s 4\r\n+ACK\r\n" % match[1])
            at = match.end() + len(_MESSAGE) + 2
        self._rest = chunk[at:]
        if acks:
            self.socket.sendall(b"".join(acks))
        elif b" 404 " in chunk or b" 408 " in chunk or b" 409 " in chunk:
            raise RuntimeError(f"no message came: {chunk!r}")
        return len(acks)


def load(address: str, kind: str, connections: int, in_flight: int, seconds: float) -> dict[str, float]:
    """Keep `in_flight` requests in flight on each connection, after a short warm-up."""
    subject, body, received = (
        ("published", _MESSAGE, _NatsClient.published)
        if kind == "publish"
        else (_PULL, b"", _NatsClient.pulled)
    )
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        client = _NatsClient(address)
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.request(subject, body, in_flight)
    done, began = 0, time.perf_counter() + _WARM_UP_SECONDS
    while (now := time.perf_counter()) - began < seconds:
        for key, _ in selector.select(_SECONDS_MAX):
            answered = received(key.data)
            if answered:
                key.data.request(subject, body, answered)
            done += answered if now >= began else 0
    if kind == "pull" and not _NatsClient(address).call("CONSUMER.INFO.filled.bench", {})["num_pending"]:
        raise RuntimeError("the stream ran dry: fill in more")
    mean_ms = 1000 * seconds * connections * in_flight / max(done, 1)
    return {"done": done, "per_second": done / seconds, "mean_ms": mean_ms}


def fill(address: str, count: int) -> None:
    """Create both streams, and fill the one to pull from."""
    client = _NatsClient(address)
    for name in ("published", "filled"):
        client.call(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "file"})
    for first in range(0, count, _BURST):
        unanswered = min(_BURST, count - first)
        client.request("filled", _MESSAGE, unanswered)
        while unanswered:
            unanswered -= client.published()


def replicate(address: str, replicas: int) -> str:
    """Create the stream to publish to, once the servers are ready for it; returns its leader."""
    name = "published"
    config = {"name": name, "subjects": [name], "storage": "file", "num_replicas": replicas}
    until = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < until:
        # A server without a cluster does not answer.
        client = _NatsClient(address, _TRY_SECONDS)
        try:
            client.call(f"STREAM.CREATE.{name}", config)
            leader = client.call(f"STREAM.INFO.{name}", {})["cluster"].get("leader")
        except (RuntimeError, TimeoutError):
            continue
        if leader:
            return str(leader)
    raise RuntimeError("the servers form no cluster")


def rewind(address: str) -> None:
    """Reset the pull consumer to the first message."""
    client = _NatsClient(address)
    client.call("CONSUMER.DELETE.filled.bench", {})
    config = {
        "durable_name": "bench",
        "ack_policy": "explicit",
        "max_waiting": 8192,
        "max_ack_pending": 100_000,
    }
    client.call("CONSUMER.DURABLE.CREATE.filled.bench", {"stream_name": "filled", "config": config})


if __name__ == "__main__":
    where, what, *numbers = sys.argv[1:]
    if what == "fill":
        fill(where, int(numbers[0]))
    elif what == "rewind":
        rewind(where)
    elif what == "replicate":
        print(replicate(where, int(numbers[0])))
    else:
        print(json.dumps(load(where, what, int(numbers[0]), int(numbers[1]), float(numbers[2]))))
