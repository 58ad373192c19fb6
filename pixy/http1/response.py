"""Parts of answers in their wire format."""

from http import HTTPStatus

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE = b"Connection: close\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def status_line(status: int) -> bytes:
    """The status line of an answer."""
    return b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())


def chunk(piece: bytes) -> bytes:
    """A piece of a chunked body, which is not empty: an empty chunk ends the body."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)
