"""HTTP/1.1 of a server's connection, without input and output: bytes in, requests out; answers in,
bytes out.

It imports nothing of pixy. llhttp (`httptools`) judges each head; bodies are framed here, strictly:
whatever two servers may read in two ways ends the connection.
"""

from pixy.http1.connection import Http1Connection, Http1Options, HttpRefusal, HttpRequest
from pixy.http1.head import HeadCache, RequestHead
from pixy.http1.response import CLOSE, chunk, status_line

__all__ = [
    "CLOSE",
    "HeadCache",
    "Http1Connection",
    "Http1Options",
    "HttpRefusal",
    "HttpRequest",
    "RequestHead",
    "chunk",
    "status_line",
]
