"""HTTP/2 and HPACK for servers (RFC 9113, RFC 7541).

Sans-I/O: bytes in, events and bytes out. The package has no knowledge of gRPC.
"""

from pixy.http2.connection import Http2Connection
from pixy.http2.errors import ErrorCode
from pixy.http2.events import (
    ConnectionTerminated,
    DataReceived,
    DataSent,
    Event,
    RequestReceived,
    StreamReset,
    TrailersReceived,
)
from pixy.http2.frames import PREFACE
from pixy.http2.headers import RequestHeaders, ResponseTemplate
from pixy.http2.hpack import Field
from pixy.http2.http1 import HTTP1_REQUEST, NO_PREFACE
from pixy.http2.options import Options
from pixy.http2.sender import Delivery

__all__ = [
    "HTTP1_REQUEST",
    "NO_PREFACE",
    "PREFACE",
    "ConnectionTerminated",
    "DataReceived",
    "DataSent",
    "Delivery",
    "ErrorCode",
    "Event",
    "Field",
    "Http2Connection",
    "Options",
    "RequestHeaders",
    "RequestReceived",
    "ResponseTemplate",
    "StreamReset",
    "TrailersReceived",
]
