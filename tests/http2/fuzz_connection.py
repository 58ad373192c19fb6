"""Fuzz a whole connection: `python -m tests.http2.fuzz_connection --time 60`.

An input is the byte stream of a client. It is fed whole and in chunks of random sizes. Events and
responses must be equal, nothing may be raised, the invariants hold, memory is bounded, and the
output consists of whole frames.
"""

import random

from pixy.http2 import (
    ConnectionTerminated,
    DataReceived,
    Event,
    Http2Connection,
    Options,
    RequestReceived,
)
from tests.http2.fuzzing import run
from tests.http2.peer import OK, TRAILERS, cut

_OPTIONS = Options(max_concurrent_streams=5, output_bytes=200_000)
_ANSWER = bytes(20_000)


def check(changed: bytes, chooser: random.Random) -> None:
    """Same outcome for every chunking, within all limits."""
    whole = _transcript([changed])
    assert _transcript(_chunks(changed, chooser)) == whole


def _chunks(changed: bytes, chooser: random.Random) -> list[bytes]:
    chunks, at = [], 0
    while at < len(changed):
        size = chooser.choice((1, 3, 9, 10, 40, 300))
        chunks.append(changed[at : at + size])
        at += size
    return chunks


def _transcript(chunks: list[bytes]) -> list[object]:
    """Events by stream. Responses are sent at the end, so they do not depend on the chunks."""
    connection = Http2Connection(_OPTIONS, 0.0)
    # By stream, because requests of one chunk are reported in the order of their ends.
    per_stream: dict[int, list[object]] = {}
    bodies: dict[int, bytes] = {}
    for chunk in chunks:
        for event in connection.receive(chunk, 0.0):
            _note(event, bodies, per_stream)
        connection.check_invariants()
        assert connection.running <= _OPTIONS.max_concurrent_streams
        assert len(connection._receiver._partial) <= _OPTIONS.max_frame_bytes + 9
    for stream_id in range(1, 100, 2):
        connection.replenish(stream_id, 0)
        if stream_id % 4 == 1:
            connection.respond(stream_id, OK, _ANSWER)
        else:
            connection.send_trailers(stream_id, TRAILERS)
        connection.check_invariants()
    cut(connection.take_output())
    assert connection.queued_bytes <= _OPTIONS.output_bytes
    return [per_stream, bodies, connection.closed, connection.running]


def _note(event: Event, bodies: dict[int, bytes], per_stream: dict[int, list[object]]) -> None:
    if isinstance(event, ConnectionTerminated):
        per_stream[0] = [event.code]
        return
    seen = per_stream.setdefault(event.stream_id, [])
    if isinstance(event, RequestReceived):
        seen.append((event.headers.path, list(event.headers.fields)))
    if isinstance(event, RequestReceived | DataReceived):
        bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.buffer[event.begin : event.end]
        if event.ended:
            seen.append("ended")
    else:
        seen.append(event)


if __name__ == "__main__":
    run("connection", check)
