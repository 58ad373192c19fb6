"""The real network: TCP, or mutual TLS on TCP."""

import asyncio
from collections.abc import Callable

from pixy.errors import StartError
from pixy.peers.address import Address
from pixy.peers.network import Listening
from pixy.peers.tls import PeerCertificates

__all__ = ["TcpNetwork"]

_BACKLOG = 1024


class TcpListening:
    """A listening socket of `TcpNetwork`."""

    def __init__(self, server: asyncio.Server, address: Address) -> None:
        self._server = server
        self.address = address

    def close(self) -> None:
        """See `Listening`."""
        self._server.close()


class TcpNetwork:
    """TCP of this machine, without delay of small writes (TCP_NODELAY, as the loops set it).

    Args:
        certificates: of mutual TLS; None: plain text.
    """

    def __init__(self, certificates: PeerCertificates | None = None) -> None:
        self._certificates = certificates

    @property
    def is_mutual_tls(self) -> bool:
        """True if both sides prove who they are by certificates."""
        return self._certificates is not None

    async def listen(self, factory: Callable[[], asyncio.BaseProtocol], address: Address) -> Listening:
        """See `Network`."""
        certificates = self._certificates

        def accept() -> asyncio.BaseProtocol:
            if certificates is not None:
                certificates.maybe_reload()  # for the connections after this one
            return factory()

        try:
            server = await asyncio.get_running_loop().create_server(
                accept,
                address.host or None,
                address.port,
                ssl=None if certificates is None else certificates.server(),
                backlog=_BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            raise StartError(f"cannot listen on {address} for peers: {error.strerror or error}") from error
        port = server.sockets[0].getsockname()[1]
        return TcpListening(server, Address(address.host, port))

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> asyncio.BaseTransport:
        """See `Network`."""
        context = None
        if self._certificates is not None:
            self._certificates.maybe_reload()
            context = self._certificates.client()
        transport, _ = await asyncio.get_running_loop().create_connection(
            factory, address.host or "127.0.0.1", address.port, ssl=context
        )
        return transport
