"""Receipts, transports and connections for tests of several parts of the gRPC server."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from pixy.http2.frames import PREFACE, FrameType, frame
from tests.fakes.echo import EchoServer

GREETING = PREFACE + frame(FrameType.SETTINGS, 0, 0) + frame(FrameType.SETTINGS, 1, 0)


class NotedReceipt:
    """A receipt that records what it is told.

    Attributes:
        said: names of the called methods, in order.
        spoken: set by the first call.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.spoken = asyncio.Event()

    def delivered(self) -> None:
        """See `Receipt`."""
        self.said.append("delivered")
        self.spoken.set()

    def undelivered(self) -> None:
        """See `Receipt`."""
        self.said.append("undelivered")
        self.spoken.set()


class FakeTransport(asyncio.Transport):
    """Records the calls of its methods, and takes all output."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.written = bytearray()
        # Its socket, if it has one.
        self.below: socket.socket | None = None
        # Called after each write, as a full transport does.
        self.full: Callable[[], None] = lambda: None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.below if name == "socket" else default

    def pause_reading(self) -> None:
        self.said.append("pause")

    def resume_reading(self) -> None:
        self.said.append("resume")

    def write(self, data: Any) -> None:
        self.written += data
        self.full()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.said.append("eof")

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.said.append("abort")

    def close(self) -> None:
        self.said.append("close")


def connected(echo: EchoServer) -> tuple[Any, FakeTransport]:
    """Connect a fake transport to the server; returns the connection with it."""
    link = echo.server.maybe_open("127.0.0.1:1", echo.factory, secure=False)
    assert link is not None
    transport = FakeTransport()
    link.connection_made(transport)
    link.workload.received(GREETING)
    return link.protocol, transport
