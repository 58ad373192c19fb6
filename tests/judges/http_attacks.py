"""Attacks over HTTP/1.1: the bytes sent on each connection, and the statuses that the server may
answer with. Pure, as `attacks`; `http_attacker` carries them out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat

_CHUNK_BYTES = 64 * 1024
_POST = b"POST /topics/attacked/messages?sync HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
_POLL = b"GET /topics/attacked/messages?group=attackers&noAck HTTP/1.1\r\nHost: h\r\n\r\n"
_LIST = b"GET /topics?withPartitions&withConfig HTTP/1.1\r\nHost: h\r\n\r\n"
_PEEK = b"GET /v1/topics/big/peek?max_records=1000 HTTP/1.1\r\nHost: h\r\n\r\n"
_STREAM = (
    b"GET /v1/topics/big/records?group=attackers HTTP/1.1\r\nHost: h\r\nAccept: application/x-ndjson\r\n\r\n"
)
_MANAGEMENT = "management"
_OFFSETS = b"POST /topics/attacked/offsets?group=g HTTP/1.1\r\nHost: h\r\n"


@dataclass(frozen=True, slots=True)
class HttpAttack:
    """An attack.

    Attributes:
        chunks: bytes of one connection; at their end the connection stays open.
        statuses: that answers may have; one of them must come, if there are any.
        ends: the server must end connections.
        connections: number of concurrent connections.
        reads: True if the attacker reads the answers.
        pause_s: pause between two chunks.
        alone: answers have large messages, so the daemon may take much memory: each connection
            holds one answer, and messages that are offered are kept.
        listener: name of the one that is attacked.
    """

    chunks: Callable[[], Iterator[bytes]]
    statuses: frozenset[str] = frozenset()
    ends: bool = False
    connections: int = 4
    reads: bool = True
    pause_s: float = 0
    alone: bool = False
    listener: str = "http"


def _many(request: bytes) -> Callable[[], Iterator[bytes]]:
    """The same request, pipelined for ever."""
    return lambda: repeat(request * max(1, _CHUNK_BYTES // len(request)))


def _then(*pieces: bytes) -> Callable[[], Iterator[bytes]]:
    """A few pieces, and then the last one for ever."""

    def chunks() -> Iterator[bytes]:
        yield from pieces
        yield from repeat(pieces[-1])

    return chunks


def _once(*pieces: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter(pieces)


def _get(path: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path


def _different_heads() -> Iterator[bytes]:
    """Heads that no cache has, of the largest size."""
    for number in count():
        fields = b"".join(b"X-%d-%d: y\r\n" % (number, each) for each in range(90))
        yield b"GET /%d HTTP/1.1\r\nHost: h\r\n%s\r\n" % (number, fields)


HTTP_ATTACKS: dict[str, HttpAttack] = {
    "pipelined pings": HttpAttack(_many(b"GET /_ping HTTP/1.1\r\nHost: h\r\n\r\n"), frozenset({"200"})),
    "pipelined paths without a route": HttpAttack(
        _many(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"), frozenset({"404"})
    ),
    "pipelined polls": HttpAttack(_many(_POLL), frozenset({"408", "429", "200"})),
    "answers that are not read": HttpAttack(_many(_LIST), reads=False),
    "large answers that are not read": HttpAttack(_many(_PEEK), reads=False, alone=True),
    "streams that are not read": HttpAttack(_once(_STREAM), reads=False, alone=True),
    "heads without an end": HttpAttack(
        _then(b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 1000), frozenset({"431"}), ends=True
    ),
    "lines without an end": HttpAttack(_then(b"GET /" + b"x" * 4000), frozenset({"414"}), ends=True),
    "heads of single bytes": HttpAttack(_then(b"GET / HTTP/1.1\r\nX: ", b"y"), connections=50, pause_s=0.01),
    "heads that differ": HttpAttack(_different_heads, frozenset({"404"})),
    "empty lines": HttpAttack(_then(b"\r\n" * 20_000)),
    "bodies that do not come": HttpAttack(_once(_POST + b"Content-Length: 1000000\r\n\r\n"), connections=50),
    "large bodies that stop": HttpAttack(
        _once(_POST + b"Content-Length: 1000000\r\n\r\n" + bytes(900_000)), connections=16
    ),
    "bodies that are too large": HttpAttack(
        _then(_POST + b"Content-Length: 10000000\r\n\r\n", bytes(_CHUNK_BYTES)), frozenset({"413"}), ends=True
    ),
    "chunks of a byte": HttpAttack(
        _then(_OFFSETS + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n" * 10_000),
        frozenset({"413"}),
        ends=True,
    ),
    "deep JSON": HttpAttack(
        lambda: repeat(_OFFSETS + b"Content-Length: 1000000\r\n\r\n" + b"[" * 1_000_000), frozenset({"413"})
    ),
    "requests of other servers": HttpAttack(
        _then(_POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        frozenset({"400"}),
        ends=True,
    ),
    "HTTP/2": HttpAttack(_then(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frozenset({"505"}), ends=True),
    "noise": HttpAttack(_then(bytes(range(256)) * 64), frozenset({"400"}), ends=True),
    "scrapes that are not read": HttpAttack(
        _many(_get(b"/metrics")), reads=False, connections=40, listener=_MANAGEMENT
    ),
    "dear requests of the management listener": HttpAttack(
        _many(b"".join(map(_get, (b"/debug/memory", b"/debug/stacks", b"/debug/tasks", b"/metrics")))),
        frozenset({"200", "429"}),
        connections=16,
        listener=_MANAGEMENT,
    ),
    "profiles": HttpAttack(
        _once(_get(b"/debug/profile?seconds=1")),
        frozenset({"200", "429"}),
        connections=32,
        listener=_MANAGEMENT,
    ),
    "pipelined probes": HttpAttack(_many(_get(b"/readyz")), frozenset({"200"}), listener=_MANAGEMENT),
    "connections beyond those of the management listener": HttpAttack(
        _once(b"GET /livez HTTP/1.1\r\n"), ends=True, connections=200, listener=_MANAGEMENT
    ),
    "heads of the management listener without an end": HttpAttack(
        _then(b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 1000),
        frozenset({"431"}),
        ends=True,
        listener=_MANAGEMENT,
    ),
    "bodies for the management listener": HttpAttack(
        _then(
            b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 65537\r\n\r\n", bytes(_CHUNK_BYTES)
        ),
        frozenset({"413"}),
        ends=True,
        listener=_MANAGEMENT,
    ),
    "requests of other servers for the management listener": HttpAttack(
        _then(
            b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        frozenset({"400"}),
        ends=True,
        listener=_MANAGEMENT,
    ),
}
"""By name."""
