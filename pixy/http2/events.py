"""What a connection tells the layer above. Bodies are spans of what the transport brought, never copies."""

from typing import NamedTuple

from pixy.http2.errors import ErrorCode
from pixy.http2.headers import RequestHeaders
from pixy.http2.hpack import Field

__all__ = [
    "ConnectionTerminated",
    "DataReceived",
    "DataSent",
    "Event",
    "RequestReceived",
    "StreamReset",
    "TrailersReceived",
]


class RequestReceived(NamedTuple):
    """A client has begun a request, and in most cases ended it as well.

    Attributes:
        stream_id: what the answer goes to.
        headers: may be the same object for many requests.
        buffer: its bytes from `begin` to `end` are the body so far, which counts as consumed.
        begin: see `buffer`.
        end: see `buffer`.
        ended: the request is complete.
        differs: one more field of the header section, which `headers` lacks because it differs from call to call; None if that is
            complete. Its place among the fields is not told, and means nothing: no other has its name (RFC 9110 §5.3).
    """

    stream_id: int
    headers: RequestHeaders
    buffer: bytes
    begin: int
    end: int
    ended: bool
    varying_field: Field | None


class DataReceived(NamedTuple):
    """More of a request's body: `buffer` from `begin` to `end`. The window opens again with `Http2Connection.replenish`."""

    stream_id: int
    buffer: bytes
    begin: int
    end: int
    ended: bool


class TrailersReceived(NamedTuple):
    """The request is complete, and ended with fields."""

    stream_id: int
    fields: list[Field]


class DataSent(NamedTuple):
    """Everything that was QUEUED on a stream is in the output. `ended`: with it the whole answer."""

    stream_id: int
    ended: bool


class StreamReset(NamedTuple):
    """A stream is gone before its answer was complete. `by_client`: it cancelled; else it broke a rule or a limit."""

    stream_id: int
    code: int
    by_client: bool


class ConnectionTerminated(NamedTuple):
    """The connection has ended: take its output, write it, close the transport. All streams are gone.

    With NO_ERROR it was drained or idle, else the client broke the protocol or a limit, or does not answer.
    """

    code: ErrorCode
    reason: str


Event = RequestReceived | DataReceived | TrailersReceived | DataSent | StreamReset | ConnectionTerminated
