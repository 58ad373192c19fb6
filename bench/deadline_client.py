"""A load client that sends what grpc-go sends when every call has a deadline: a new value, added to the HPACK table, in each request.

    python -m bench.deadline_client ADDRESS METHOD BODY_FILE CONNECTIONS STREAMS SECONDS DEADLINES

DEADLINES is 1 for a new deadline in each call, 0 for none. Requests are encoded before the clock runs, and answers only counted, so that
the client is not what is measured. Prints one JSON object: done, per_second, mean_ms.
"""

import json
import selectors
import socket
import sys
import time
from pathlib import Path

import hpack

from pixy.http2 import frames as f
from pixy.http2.headers import encode_headers

_OK = encode_headers([(b"grpc-status", b"0")])
_SETTINGS = f.frame(f.FrameType.SETTINGS, 0, 0) + f.window_update(0, 2**30)
_CALLS_PER_SECOND_MAX = 15_000
"""Of one connection; more are not encoded."""


class _Client:
    """One connection with its requests."""

    def __init__(self, address: str, method: str, body: bytes, calls: int, deadlines: bool) -> None:
        host, port = address.rsplit(":", 1)
        encoder = hpack.Encoder()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/KafkaPixy/{method}"),
            (":authority", address),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.65.0"),
            ("te", "trailers"),
        ]
        self.requests = []
        for call in range(calls):
            timeout = [("grpc-timeout", f"{9_999_999 - call}u")] if deadlines else []
            block = encoder.encode([*fields, *timeout])
            self.requests.append(
                f.frame(f.FrameType.HEADERS, f.END_HEADERS, 2 * call + 1, block)
                + f.frame(f.FrameType.DATA, f.END_STREAM, 2 * call + 1, body)
            )
        self.sent = self.done = 0
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(f.PREFACE + _SETTINGS + f.frame(f.FrameType.SETTINGS, f.ACK, 0))
        self._tail = b""

    def send(self, count: int) -> None:
        """Send so many more requests."""
        if self.sent + count > len(self.requests):
            raise RuntimeError("the requests ran out: encode more")
        self.socket.sendall(b"".join(self.requests[self.sent : self.sent + count]))
        self.sent += count

    def receive(self) -> int:
        """How many calls were answered with OK since the last time."""
        chunk = self._tail + self.socket.recv(262_144)
        answered = chunk.count(_OK)
        # An end that may be the start of a status stays.
        self._tail = chunk[-(len(_OK) - 1) :] if not chunk.endswith(_OK) else b""
        self.done += answered
        return answered


def main(
    address: str, method: str, body: bytes, connections: int, streams: int, seconds: float, deadlines: bool
) -> None:
    """Keep so many calls in flight for so long."""
    calls = round(_CALLS_PER_SECOND_MAX * seconds)
    clients = [_Client(address, method, body, calls, deadlines) for _ in range(connections)]
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.send(streams)
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        for key, _ in selector.select(seconds):
            answered = key.data.receive()
            if answered:
                key.data.send(answered)
    done = sum(client.done for client in clients)
    mean_ms = 1000 * (now - began) * connections * streams / max(done, 1)
    print(json.dumps({"done": done, "per_second": done / (now - began), "mean_ms": mean_ms}))


if __name__ == "__main__":
    where, what, body_file, *numbers, with_deadlines = sys.argv[1:]
    main(
        where,
        what,
        Path(body_file).read_bytes(),
        int(numbers[0]),
        int(numbers[1]),
        float(numbers[2]),
        with_deadlines == "1",
    )
