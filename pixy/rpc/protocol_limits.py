"""Reasons that clients get for the end of a connection or stream, and the options behind them."""

from pixy.http2 import HTTP1_REQUEST, ErrorCode
from pixy.serving import End

ENDS = {
    End.LOST: (ErrorCode.NO_ERROR, "the connection is lost"),
    End.GRACE_OVER: (ErrorCode.NO_ERROR, "the grace period is over"),
    End.EVICTED: (
        ErrorCode.ENHANCE_YOUR_CALM,
        "the server's buffers are full, and this connection holds most",
    ),
    # RFC 9113 §3.2: over TLS, ALPN must have chosen HTTP/2.
    End.NOT_AGREED: (ErrorCode.HTTP_1_1_REQUIRED, HTTP1_REQUEST),
}
"""Codes and reasons of an end that the link decides."""
_OPTIONS = {
    "too many concurrent streams": "grpc.max_concurrent_streams",
    "header block timeout": "grpc.handshake_timeout",
    "handshake timeout": "grpc.handshake_timeout",
    "response larger than the output buffer's space": "grpc.output_buffer_bytes",
}


def limit_of(reason: str) -> str:
    """The option of a limit that a stream or connection met; the reason itself if it has none.

    Reasons are texts of the core, never of a client.
    """
    return _OPTIONS.get(reason, reason)
