"""Requests of HTTP/1 that come to a port of HTTP/2, and the answer to them."""

from pixy.http2.errors import ErrorCode, Http2ConnectionError

HTTP1_REQUEST = "an HTTP/1 request, this port needs HTTP/2"
NO_PREFACE = "not an HTTP/2 client preface"

_METHODS = tuple(
    f"{method} ".encode()
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE")
)


def http1_answer(hint: str) -> bytes:
    """The whole answer to any request of HTTP/1 (RFC 9110 §15.6.6); the connection ends behind it.

    Args:
        hint: a sentence on where HTTP/1 is spoken.
    """
    text = f"This port serves gRPC over HTTP/2. {hint}\n".encode()
    return (
        b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(text), text)
    )


def no_preface(begin: bytes) -> Http2ConnectionError:
    """The error of a connection that begins with other bytes than those of a client preface.

    Args:
        begin: all bytes that have come, at least up to the first that differs.
    """
    is_http1 = begin.startswith(_METHODS) or any(method.startswith(begin) for method in _METHODS)
    return Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, HTTP1_REQUEST if is_http1 else NO_PREFACE)
