"""asyncio's transport of one connection: writes, reading on and off, and the end.

A socket that is closed while input is unread makes TCP discard what was written, so the client
would not learn why its connection has ended. Therefore `close` ends the output (`write_eof`) and
leaves the socket open for reading.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pixy.aio.socket_writes import write_of
from pixy.client_address import UNIX_CLIENT
from pixy.serving.client_ends import ClientEnds


class Transport:
    """A transport, from the time that it is made.

    Args:
        client_ends: of the server's clients.
        secure: TLS.

    Attributes:
        peer: the client's address.
        writable: the transport wants more to write.
        eof: the client has closed its side. The transport closes, and takes no more.
        client_left: the client has closed its side, as the system has told before the transport.
        write: writes; may set `writable` to False. Returns True if the system has taken all of it.
    """

    __slots__ = (
        "_client_ends",
        "_descriptor",
        "_secure",
        "_transport",
        "client_left",
        "eof",
        "peer",
        "writable",
        "write",
    )

    def __init__(self, client_ends: ClientEnds, *, secure: bool) -> None:
        self._client_ends = client_ends
        self._secure = secure
        self._transport: Any = None
        self.write: Callable[[bytes], bool | None]
        # Watched by `client_ends`; -1 until the client's end is first of interest.
        self._descriptor = -1
        self.client_left = False
        self.peer = ""
        self.writable = True
        self.eof = False

    def made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport
        self.write = write_of(self._transport)
        self.peer = peer_name(transport.get_extra_info("peername"))

    @property
    def alpn(self) -> str | None:
        """Name of the protocol that ALPN has chosen, "" if none, and None for plain text."""
        if not self._secure:
            return None
        tls = self._transport.get_extra_info("ssl_object")
        return tls.selected_alpn_protocol() or "" if tls is not None else ""

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were written and not taken by the system."""
        size: int = self._transport.get_write_buffer_size()
        return size

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's verified certificate as `ssl.SSLSocket.getpeercert` describes it, or
        None.
        """
        return self._transport.get_extra_info("peercert") or None

    def took_writes(self) -> bool:
        """True when the transport has taken what was just written; one that closes discards it."""
        return not self.eof and not self._transport.is_closing()

    def has_client(self) -> bool:
        """True before a write unless the client has closed.

        To be asked before: a client may read its answer and close before this process goes on.
        """
        if self.eof:
            return False
        if self._descriptor < 0:
            if self._transport.is_closing():
                return False
            self._watch()
        if not self._client_ends.asked:
            self._client_ends.ask()
        return not self.client_left

    def _watch(self) -> None:
        socket = self._transport.get_extra_info("socket")
        if socket is not None:
            self._descriptor = socket.fileno()
            self._client_ends.watch(self._descriptor, self)

    def lost(self) -> None:
        """The transport is gone."""
        if self._descriptor >= 0:
            self._client_ends.forget(self._descriptor, self)

    def set_reading(self, on: bool) -> None:
        """Resume or pause reading; the same twice does no harm."""
        change = self._transport.resume_reading if on else self._transport.pause_reading
        with contextlib.suppress(RuntimeError):  # of a transport that is closing
            change()

    def close(self) -> bool:
        """End the output behind what was written; True if the client's side stays open to be read.

        TLS has a closing handshake of its own.
        """
        if self._secure or not self._transport.can_write_eof():
            self._transport.close()
            return False
        with contextlib.suppress(OSError):  # the client has gone first
            self._transport.write_eof()
        return True

    def abort(self) -> None:
        """Close at once, and discard what is buffered."""
        if self._transport is not None:
            self._transport.abort()


def peer_name(peername: object) -> str:
    """A peer by its address as the system gives it, which of a unix socket is none."""
    if isinstance(peername, tuple):
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return UNIX_CLIENT
