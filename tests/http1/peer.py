"""A connection as a test feeds it, and requests that a server has to read in one way or refuse."""

from collections.abc import Iterable
from typing import NamedTuple

from pixy.http1 import HeadCache, Http1Connection, Http1Options, HttpRefusal, HttpRequest, RequestHead

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: h\r\n"

SMUGGLING = {
    "CL.TE": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE.CL": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "TE.TE": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "TE twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE gzip": b"Transfer-Encoding: gzip\r\n\r\n",
    "TE gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "TE chunked, gzip": b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "TE xchunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "TE empty": b"Transfer-Encoding: \r\n\r\n",
    "TE quoted": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "TE with a space before its colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "TE behind a tab": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "TE folded": b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n",
    "two CLs": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "two different CLs": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "CL list": b"Content-Length: 5, 5\r\n\r\nhello",
    "CL plus": b"Content-Length: +5\r\n\r\nhello",
    "CL minus": b"Content-Length: -5\r\n\r\nhello",
    "CL hexadecimal": b"Content-Length: 0x5\r\n\r\nhello",
    "CL empty": b"Content-Length: \r\n\r\n",
    "CL huge": b"Content-Length: 99999999999999999999999\r\n\r\n",
    "bare LF": b"X: y\nContent-Length: 5\r\n\r\nhello",
    "bare LFs at the end": b"Content-Length: 5\n\nhello",
    "bare CR": b"X: y\rContent-Length: 5\r\n\r\nhello",
    "NUL": b"X: a\0b\r\n\r\n",
    "no name": b": a\r\n\r\n",
    "no colon": b"X\r\n\r\n",
    "obs-fold": b"X: a\r\n b\r\n\r\n",
    "obs-fold at once": b" X: a\r\n\r\n",
    "two hosts": b"Host: i\r\n\r\n",
    "chunk extension": b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
    "chunk extension without a name": b"Transfer-Encoding: chunked\r\n\r\n5;\r\nhello\r\n0\r\n\r\n",
    "space behind the size of a chunk": b"Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    "chunk size with a prefix": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "chunk size of many digits": b"Transfer-Encoding: chunked\r\n\r\n000000005\r\nhello\r\n0\r\n\r\n",
    "chunk without a size": b"Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    "bare LF behind the size of a chunk": b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "bare LF behind a chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    "chunk longer than its size": b"Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n",
    "CL in a trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
    "folded trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n b\r\n\r\n",
}
"""The rest of a POST behind its field Host, by name."""


class Seen(NamedTuple):
    """Everything that came out of a connection.

    Attributes:
        requests: method, path, query and body of each.
        refused: status of the refusal, 0 for none.
    """

    requests: list[tuple[str, bytes, bytes, bytes]]
    refused: int


def connection(options: Http1Options | None = None, body_bytes_max: int = 1000) -> Http1Connection:
    """A connection that nothing was said on, at time 0."""

    def most(_: RequestHead) -> int:
        return body_bytes_max

    return Http1Connection(options or Http1Options(), HeadCache(), most, 0.0)


def feed(core: Http1Connection, chunks: Iterable[bytes], now: float = 0.0, work: int = 1 << 14) -> Seen:
    """Feed chunks; each request is answered with its number."""
    requests, refused = [], 0
    for chunk in chunks:
        core.receive(chunk, work)
        while True:
            event = core.next_event(now)
            core.check_invariants()
            if event is None and not core.pending:
                break
            if event is None:
                core.receive(b"", work)
            elif isinstance(event, HttpRequest):
                head = event.head
                requests.append((head.method, head.path, head.query, event.body))
                core.respond(event.number, b"%d," % event.number)
            elif isinstance(event, HttpRefusal):
                refused = event.status
                core.respond(event.number, b"refused")
    return Seen(requests, refused)


def refused(sent: bytes) -> int:
    """Status with which bytes are refused, 0 if they are not."""
    return feed(connection(), [sent]).refused
