"""Protocol errors: of the connection, or of one stream.

A connection error ends the connection with GOAWAY, a stream error ends one stream with RST_STREAM
(RFC 9113 §5.4). Both carry the error code for the wire. They are raised where the fault is detected
and handled in one place of `connection`. They never leave the package: the layer above sees events.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Error codes of RST_STREAM and GOAWAY (RFC 9113 §7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2Error(Exception):
    """The peer broke the protocol or a limit.

    Args:
        code: sent to the peer.
        reason: description with the operands; the debug data of a GOAWAY.
    """

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Http2ConnectionError(Http2Error):
    """An error that ends the connection."""


class Http2StreamError(Http2Error):
    """An error that ends one stream; the others continue."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str) -> None:
        super().__init__(code, reason)
        self.stream_id = stream_id
