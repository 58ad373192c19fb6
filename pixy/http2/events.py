"""Events of a connection. Bodies are spans of the transport's chunks, never copies."""

from typing import NamedTuple

from pixy.http2.errors import ErrorCode
from pixy.http2.headers import RequestHeaders
from pixy.http2.hpack import Field


class RequestReceived(NamedTuple):
    """A client has begun a request, and in most cases completed it as well.

    Attributes:
        stream_id: stream to respond on.
        headers: may be one object for many requests.
        buffer: its bytes from `begin` to `end` are the body so far; they count as consumed.
        begin: see `buffer`.
        end: see `buffer`.
        ended: True if the request is complete.
        varying_field: one more field of the header section, missing in `headers` because its value
            differs from call to call; None if `headers` is complete. Its position among the fields
            is not reported and has no meaning: no other field has its name (RFC 9110 §5.3).
    """

    stream_id: int
    headers: RequestHeaders
    buffer: bytes
    begin: int
    end: int
    ended: bool
    varying_field: Field | None


class DataReceived(NamedTuple):
    """More of a request's body: `buffer` from `begin` to `end`.

    `Http2Connection.replenish` reopens the window.
    """

    stream_id: int
    buffer: bytes
    begin: int
    end: int
    ended: bool


class TrailersReceived(NamedTuple):
    """The request is complete and ended with trailers."""

    stream_id: int
    fields: list[Field]


class DataSent(NamedTuple):
    """All data that was QUEUED on a stream is now in the output.

    `ended`: so is the end of the response.
    """

    stream_id: int
    ended: bool


class StreamReset(NamedTuple):
    """A stream was reset before its response was complete.

    `by_client`: the client cancelled it; else the client broke a rule or a limit.
    """

    stream_id: int
    code: int
    by_client: bool


class ConnectionTerminated(NamedTuple):
    """The connection is over: write its output, then close the transport. All streams are closed.

    NO_ERROR: the connection was drained or idle, or the client is unresponsive. Any other code: the
    client broke the protocol or a limit.
    """

    code: ErrorCode
    reason: str


Event = RequestReceived | DataReceived | TrailersReceived | DataSent | StreamReset | ConnectionTerminated
