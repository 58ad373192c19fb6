"""A load client that sends deadlines as grpc-go does: a new value, added to the HPACK table, in
each request.

    python -m bench.grpc.deadline_client ADDRESS METHOD BODY_FILE CONNECTIONS STREAMS SECONDS

Half of its connections send deadlines, the other half none; they alternate every fraction of a
second, so that both see the same machine. Requests are encoded before the clock starts, and
responses only counted, so that the client is not measured. Prints one JSON object: calls per second
without and with deadlines.
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
"""Limit of the requests encoded per connection."""
_TURN_SECONDS = 0.1
_ANSWER_SECONDS_MAX = 10.0


class _DeadlineClient:
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
        """Send further requests."""
        if self.sent + count > len(self.requests):
            raise RuntimeError("the requests ran out: encode more")
        self.socket.sendall(b"".join(self.requests[self.sent : self.sent + count]))
        self.sent += count

    def receive(self) -> int:
        """Number of calls answered OK since the last time."""
        chunk = self._tail + self.socket.recv(262_144)
        answered = chunk.count(_OK)
        # A tail that may be the start of a status is kept.
        self._tail = chunk[-(len(_OK) - 1) :] if not chunk.endswith(_OK) else b""
        self.done += answered
        return answered


class _Group:
    """Connections with a fixed number of calls in flight each during their turn."""

    def __init__(self, clients: list[_DeadlineClient], streams: int) -> None:
        self._clients = clients
        self._streams = streams
        self._selector = selectors.DefaultSelector()
        for client in clients:
            self._selector.register(client.socket, selectors.EVENT_READ, client)
        self._seconds = 0.0

    @property
    def per_second(self) -> float:
        return sum(client.done for client in self._clients) / self._seconds

    def take_turn(self) -> None:
        """Run one turn, until all calls are answered."""
        began = time.perf_counter()
        for client in self._clients:
            client.send(self._streams)
        while any(client.done < client.sent for client in self._clients):
            for key, _ in self._selector.select(_ANSWER_SECONDS_MAX):
                answered = key.data.receive()
                if answered and time.perf_counter() - began < _TURN_SECONDS:
                    key.data.send(answered)
        self._seconds += time.perf_counter() - began


def main(address: str, method: str, body: bytes, connections: int, streams: int, seconds: float) -> None:
    """Measure both kinds."""
    calls = round(_CALLS_PER_SECOND_MAX * seconds)
    plain, timed = (
        _Group(
            [_DeadlineClient(address, method, body, calls, deadlines) for _ in range(connections)], streams
        )
        for deadlines in (False, True)
    )
    for _ in range(round(seconds / _TURN_SECONDS)):
        plain.take_turn()
        timed.take_turn()
    print(json.dumps({"plain": plain.per_second, "deadlines": timed.per_second}))


if __name__ == "__main__":
    where, what, body_file, connections, streams, seconds = sys.argv[1:]
    main(where, what, Path(body_file).read_bytes(), int(connections), int(streams), float(seconds))
