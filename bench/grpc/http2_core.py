"""Cost of a no-op call in the HTTP/2 core alone: no sockets, no gRPC, no event loop.

    python -m bench.grpc.http2_core [--profile]

A client's bytes are prepared before the clock starts. Each chunk holds the requests in flight; all
of them are answered, then the output is taken, as in one iteration of an event loop.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import hpack

from pixy.http2 import DataReceived, Delivery, Http2Connection, Options, RequestReceived, ResponseTemplate
from pixy.http2 import frames as f

_CALLS = 200_000
_ROUNDS = 5
_MESSAGE = b"\0" + (100).to_bytes(4, "big") + bytes(100)
_ANSWER = b"\0\0\0\0\x04\x08\x01\x10\x02"
_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/KafkaPixy/Produce"),
    (":authority", "127.0.0.1:19091"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-go/1.65.0"),
    ("te", "trailers"),
]
_OK = ResponseTemplate(
    [(b":status", b"200"), (b"content-type", b"application/grpc")], [(b"grpc-status", b"0")]
)
_REQUESTS = (RequestReceived, DataReceived)


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    in_flight: int
    timeouts: bool = False
    headers_first: bool = False


_CASES = (
    _Case("1 in flight", 1),
    _Case("32 in flight", 32),
    _Case("128 in flight", 128),
    _Case("128 in flight, all HEADERS in front of all DATA (as h2load)", 128, headers_first=True),
    _Case("128 in flight, a new grpc-timeout in each (as grpc-go)", 128, timeouts=True),
)


def main() -> None:
    """Print microseconds per call."""
    parser = argparse.ArgumentParser(description="CPU per call of the HTTP/2 core")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    arguments = parser.parse_args()
    for case in _CASES:
        best = min(_run(case) for _ in range(_ROUNDS))
        print(f"{best:6.2f} us per call   {case.name}")
    if arguments.profile:
        for case in _CASES[-2:]:
            profile = cProfile.Profile()
            _run(case, profile.runcall)
            print(f"\n{case.name}")
            pstats.Stats(profile).sort_stats("tottime").print_stats(12)


def _run(case: _Case, call: Callable[..., None] | None = None) -> float:
    """Microseconds of processor time per call."""
    connection, encoder = Http2Connection(Options(), 0.0), hpack.Encoder()
    connection.receive(f.PREFACE + f.frame(f.FrameType.SETTINGS, 0, 0), 0.0)
    chunks = list(_chunks(case, encoder))
    # Opening the window as a client does is not part of a call.
    connection.receive(f.window_update(0, 2**30), 0.0)
    before = time.process_time()
    if call is None:
        _exchange(connection, chunks)
    else:
        call(_exchange, connection, chunks)
    seconds = time.process_time() - before
    return seconds / _CALLS * 1e6


def _exchange(connection: Http2Connection, chunks: list[bytes]) -> None:
    respond, answered = connection.respond, 0
    for chunk in chunks:
        for event in connection.receive(chunk, 0.0):
            if isinstance(event, _REQUESTS) and event.ended:
                answered += respond(event.stream_id, _OK, _ANSWER) is Delivery.SENT
        connection.take_output()
    assert answered == _CALLS


def _chunks(case: _Case, encoder: hpack.Encoder) -> Iterator[bytes]:
    heads: list[bytes] = []
    bodies: list[bytes] = []
    for call in range(_CALLS):
        headers = [*_HEADERS, ("grpc-timeout", f"{9_999_999 - call}u")] if case.timeouts else _HEADERS
        heads.append(f.frame(f.FrameType.HEADERS, f.END_HEADERS, 2 * call + 1, encoder.encode(headers)))
        bodies.append(f.frame(f.FrameType.DATA, f.END_STREAM, 2 * call + 1, _MESSAGE))
        if (call + 1) % case.in_flight == 0 or call + 1 == _CALLS:
            yield b"".join(heads + bodies if case.headers_first else map(bytes.__add__, heads, bodies))
            heads.clear()
            bodies.clear()


if __name__ == "__main__":
    main()
