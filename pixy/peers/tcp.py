"""The real network: TCP, or mutual TLS on TCP.

A listening socket accepts by itself instead of by an asyncio server, which would not say why a TLS
handshake has failed.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from pixy.aio.tasks import Tasks
from pixy.errors import StartError
from pixy.peers.address import Address
from pixy.peers.network import Listening
from pixy.peers.slots import HandshakeSlots
from pixy.peers.stranger_log import StrangerLog
from pixy.peers.texts import shown
from pixy.peers.tls import PeerCertificates

log = structlog.get_logger(__name__)

_BACKLOG = 1024
_ACCEPT_RETRY_S = 1.0
_ADMITTED_AT_ONCE = 16
_ACCEPTED_AT_ONCE = 256
"""Connections that one iteration of the loop admits, and those that it takes from the queue."""
_NAMES_MAX = 1000
"""Host names whose addresses are kept."""
_OPENING_MAX = 256
"""Connections in their TLS handshake."""
TLS_HANDSHAKE_S = 3.0
_TLS_CLOSE_S = 1.0
_COUNT_S = 61.0

Factory = Callable[[], asyncio.BaseProtocol]
Admits = Callable[[str], bool]
AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
Opening = Coroutine[Any, Any, tuple[asyncio.Transport, asyncio.BaseProtocol]]


class TcpNetwork:
    """TCP of this machine, without delay of small writes (TCP_NODELAY).

    Args:
        certificates: of mutual TLS; None: plain text.
    """

    def __init__(self, certificates: PeerCertificates | None = None) -> None:
        self._certificates = certificates
        # IP addresses of host names, the name that was resolved last at the end.
        self._addresses: dict[str, frozenset[str]] = {}

    def addresses_of(self, host: str) -> Collection[str]:
        """See `Network`."""
        return self._addresses.get(host, ())

    async def listen(self, factory: Factory, address: Address, admits: Admits = lambda _: True) -> Listening:
        """See `Network`."""
        host = address.host or "0.0.0.0"
        loop = asyncio.get_running_loop()
        try:
            family, kind, protocol, _, target = (
                await loop.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
            )[0]
            bound = socket.socket(family, kind, protocol)
        except OSError as error:
            raise _cannot_listen(address, error) from error
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(target)
            bound.listen(_BACKLOG)
            bound.setblocking(False)
        except OSError as error:
            bound.close()
            raise _cannot_listen(address, error) from error
        return _TcpListening(
            bound, Address(address.host, bound.getsockname()[1]), factory, admits, self._certificates
        )

    async def connect(self, factory: Factory, address: Address) -> asyncio.BaseTransport:
        """See `Network`."""
        context = None
        if self._certificates is not None:
            self._certificates.maybe_reload()
            context = self._certificates.client()
        connected = await self._connected(address)
        opening = asyncio.get_running_loop().create_connection(
            factory,
            sock=connected,
            ssl=context,
            server_hostname="" if context else None,
            ssl_handshake_timeout=TLS_HANDSHAKE_S if context else None,
            ssl_shutdown_timeout=_TLS_CLOSE_S if context else None,
        )
        return await _opened(opening, connected)

    async def _connected(self, address: Address) -> socket.socket:
        host = address.host or "127.0.0.1"
        found = await asyncio.get_running_loop().getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
        self._addresses.pop(host, None)
        self._addresses[host] = frozenset(str(target[0]) for *_, target in found)
        if len(self._addresses) > _NAMES_MAX:
            del self._addresses[next(iter(self._addresses))]
        return await _connected(host, found)


_HUNG_UP = (
    "the peer has ended it, as one does that does not trust the certificate of this node: see its log, and compare its "
    "cluster.tls.ca_file with cluster.tls.cert_file here"
)


class _TcpListening:
    """A listening socket of `TcpNetwork`."""

    def __init__(
        self,
        bound: socket.socket,
        address: Address,
        factory: Factory,
        admits: Admits,
        certificates: PeerCertificates | None,
    ) -> None:
        self._socket = bound
        self.address = address
        self._factory = factory
        self._admits = admits
        self._certificates = certificates
        self._tasks = Tasks(self._note)
        self._slots = HandshakeSlots[asyncio.Task[None]](_OPENING_MAX)
        # Accepted sockets that nothing has been done with.
        self._unopened: set[socket.socket] = set()
        self._strangers = StrangerLog()
        self._count_later: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        # No task accepts: one that is cancelled as it gets a socket would leave it open.
        self._loop.add_reader(self._socket, self._accept)

    async def close(self) -> None:
        """See `Listening`."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        if self._retry is not None:
            self._retry.cancel()
        self._socket.close()
        await self._tasks.cancel_all()
        if self._count_later is not None:
            self._count_later.cancel()

    def _note(self, fault: BaseException) -> None:
        log.error("a fault while a connection of a peer was accepted", exc_info=fault)

    def _accept(self) -> None:
        """Take what waits in the queue of the system, so that nodes do not wait behind others."""
        admitted = 0
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._socket.accept()
            except ConnectionAbortedError:
                continue
            except BlockingIOError:
                return
            except OSError as error:
                self._accept_later(error)
                return
            if not self._admits(str(peer[0])):
                accepted.close()
                continue
            self._admit(accepted, peer)
            admitted += 1
            if admitted == _ADMITTED_AT_ONCE:
                return

    def _accept_later(self, error: OSError) -> None:
        log.error("no connections of peers can be accepted for a while", reason=str(error))
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(
            _ACCEPT_RETRY_S, self._loop.add_reader, self._socket, self._accept
        )

    def _admit(self, accepted: socket.socket, peer: Sequence[Any]) -> None:
        opening = self._tasks.spawn(self._open(accepted, peer), "open a connection of a peer")
        self._unopened.add(accepted)
        opening.add_done_callback(partial(self._ended, accepted))
        gone = self._slots.add(opening, str(peer[0]))
        if gone is not None:
            gone.cancel()

    async def _open(self, accepted: socket.socket, peer: Sequence[Any]) -> None:
        self._unopened.remove(accepted)
        context = None
        if self._certificates is not None:
            self._certificates.maybe_reload()
            context = self._certificates.server()
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening = self._loop.connect_accepted_socket(
                self._factory,
                accepted,
                ssl=context,
                ssl_handshake_timeout=TLS_HANDSHAKE_S if context else None,
                ssl_shutdown_timeout=_TLS_CLOSE_S if context else None,
            )
            await _opened(opening, accepted)
        except OSError as error:
            accepted.close()
            self._failed("{}:{}".format(*peer), str(error) or _HUNG_UP)

    def _ended(self, accepted: socket.socket, opening: "asyncio.Task[None]") -> None:
        self._slots.remove(opening)
        if accepted in self._unopened:
            # It was cancelled before it began.
            self._unopened.remove(accepted)
            accepted.close()

    def _failed(self, peer: str, reason: str) -> None:
        event, now = "a connection of a peer has failed in its TLS handshake", self._loop.time()
        again = peer.rpartition(":")[0], reason
        if self._strangers.write("warning", event, now, again, peer=peer, reason=shown(reason)):
            return
        if self._count_later is None or self._count_later.when() < now:
            self._count_later = self._loop.call_later(_COUNT_S, self._count)

    def _count(self) -> None:
        self._strangers.tick(self._loop.time())


async def _connected(host: str, found: Sequence[AddressInfo]) -> socket.socket:
    """A connected socket, of the first address of a host that answers."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, target in found:
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(made, target)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure


async def _opened(opening: Opening, sock: socket.socket) -> asyncio.Transport:
    """The transport of a connected socket, which belongs to the transport from here on.

    Opening is not cancelled with the caller, but its socket ends at once, and with that a TLS
    handshake; and its transport is aborted. uvloop would close the transport without telling its
    protocol, which has got it already.
    """
    task, inode = asyncio.ensure_future(_given_away(opening, sock)), _inode(sock)
    try:
        return (await asyncio.shield(task))[0]
    except asyncio.CancelledError:
        task.add_done_callback(_abort)
        with suppress(OSError):
            if _inode(sock) == inode:  # else uvloop has closed it, and its number is another's
                sock.shutdown(socket.SHUT_RDWR)
        raise


def _inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


async def _given_away(
    opening: Opening, sock: socket.socket
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """The result of `opening`, with a socket object that does not close the descriptor.

    uvloop closes the descriptor by itself, and may have done so before it takes the object. That
    would later close the same number once more: by then that of any file or connection.
    """
    try:
        return await opening
    finally:
        if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            sock.detach()


def _abort(task: "asyncio.Future[tuple[asyncio.Transport, asyncio.BaseProtocol]]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[0].abort()


def _cannot_listen(address: Address, error: OSError) -> StartError:
    return StartError(f"cannot listen on {address} for peers: {error.strerror or error}")
