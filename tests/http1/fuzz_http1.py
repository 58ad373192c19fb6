"""Fuzz a connection of HTTP/1.1: `python -m tests.http1.fuzz_http1 --time 60`.

An input is the byte stream of a client. It is fed whole and in chunks of random sizes. The requests
are the same, the connection is refused behind the same request or not at all, nothing else is
raised, the invariants hold, and memory is bounded.

The status of a refusal may differ: a head with two faults that is not complete has shown one.
"""

import random

from pixy.http1 import Http1Options
from tests.http1.peer import Seen, connection, feed
from tests.http2.fuzzing import run

_OPTIONS = Http1Options(head_bytes=500)


def check(changed: bytes, chooser: random.Random) -> None:
    """Same outcome for every chunking, within all limits."""
    whole = _transcript([changed])
    chunks, at = [], 0
    while at < len(changed):
        size = chooser.choice((1, 2, 3, 9, 40, 300))
        chunks.append(changed[at : at + size])
        at += size
    pieces = _transcript(chunks)
    # An incomplete head may be known to be wrong, or wait for its end.
    assert pieces.requests == whole.requests
    assert bool(pieces.refused) == bool(whole.refused)


def _transcript(chunks: list[bytes]) -> Seen:
    core = connection(_OPTIONS)
    seen = feed(core, chunks)
    assert core.request_bytes <= max(_OPTIONS.head_bytes, 16_384) + 1000
    if seen.refused:
        assert core.closed
        assert core.request_bytes == 0
    return seen


if __name__ == "__main__":
    run("http1", check)
