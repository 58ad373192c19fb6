"""Listeners on TCP, TLS and unix sockets.

A listener owns its socket and accepts by itself: asyncio's servers accept everything that waits. It
accepts a few connections in an iteration of the loop, so that a storm of them delays no calls, and
none beyond a limit. A connection counts from the moment that it is accepted, in its TLS handshake
too; one that has not finished that within `handshake_s` is cut off. New connections use the
certificates that are on disk.
"""

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from pixy.aio.tasks import Tasks
from pixy.config import TlsConfig, check_regular, split_address
from pixy.errors import StartError
from pixy.serving.environment import ServerOptions
from pixy.serving.link import Link, ProtocolFactory
from pixy.serving.transport import peer_name

log = structlog.get_logger(__name__)

_BACKLOG = 4096
_ACCEPTS_PER_ITERATION = 4
"""Accepting and greeting a connection takes about 0.2 ms."""
_ACCEPT_RETRY_S = 1.0
_NO_LIMIT_S = 365 * 86_400.0
"""For event loops that take 0 for their default."""
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2 that RFC 9113 §9.2.2 leaves. All those of TLS 1.3 are allowed."""


class TlsFiles:
    """Certificates of a server on disk.

    Args:
        config: their paths.
        protocols: names of the protocols that clients may choose (ALPN).
    """

    def __init__(self, config: TlsConfig, protocols: Sequence[str]) -> None:
        self._config = config
        self._protocols = [name for name in protocols if name]
        self._paths = [
            path for path in (config.certificate_path, config.key_path, config.client_ca_path) if path
        ]
        self._seen = self._versions()

    def context(self) -> ssl.SSLContext:
        """A context with the files' contents.

        Raises:
            StartError: a file cannot be read, or they do not belong together.
        """
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_ciphers(_CIPHERS)
        context.set_alpn_protocols(self._protocols)
        try:
            check_regular(config.certificate_path)
            check_regular(config.key_path)
            context.load_cert_chain(config.certificate_path, config.key_path)
        except (ssl.SSLError, OSError) as error:
            raise StartError(
                f"tls.certificate_path {config.certificate_path} and tls.key_path {config.key_path} cannot be used: {error}"
            ) from error
        if config.client_ca_path:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                check_regular(config.client_ca_path)
                context.load_verify_locations(config.client_ca_path)
            except (ssl.SSLError, OSError) as error:
                path = config.client_ca_path
                raise StartError(f"tls.client_ca_path {path} cannot be used: {error}") from error
        return context

    def changed(self) -> bool:
        """True if a file has changed since the last call."""
        seen = self._versions()
        changed, self._seen = seen != self._seen, seen
        return changed

    def _versions(self) -> list[tuple[int, int, int]]:
        versions = []
        for path in self._paths:
            with suppress(OSError):
                status = os.stat(path)
                versions.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return versions


class Opener(Protocol):
    """Opens the connections of a listener."""

    @property
    def options(self) -> ServerOptions: ...

    def maybe_open(self, peer: str, factory: ProtocolFactory, *, secure: bool) -> Link | None:
        """Open a connection of a client, None if there are too many."""

    def note(self, bug: BaseException) -> None:
        """Count and report a bug."""


class Listener:
    """One socket that accepts connections.

    Args:
        sock: bound.
        address: for the operator.
        opener: opens the connections.
        factory: of their protocol.
        tls: certificates, None for plain text.
        context: made of `tls`.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        opener: Opener,
        factory: ProtocolFactory,
        tls: TlsFiles | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = sock
        self.address = address
        self._opener = opener
        self.factory = factory
        self._tls = tls
        self._context = context
        # Connections that were accepted and are not made: for an iteration of the loop, or for a
        # handshake.
        self._opening = Tasks(opener.note)
        # Resumes accepting after the system was out of descriptors.
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections."""
        self._retry = None
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def maybe_reload(self) -> None:
        """Load certificates that have changed on disk. The old ones stay if they cannot be used."""
        if self._tls is None:
            return
        try:
            if not self._tls.changed():
                return
            self._context = self._tls.context()
        except StartError as error:
            log.error("certificates have changed and cannot be used; the old ones stay", reason=str(error))
        except Exception:
            log.exception("a fault while certificates were read; the old ones stay", address=self.address)
        else:
            log.info("certificates have changed and are used", address=self.address)

    async def close(self) -> None:
        """Stop accepting, abandon handshakes, and remove a unix socket's file."""
        if self._socket.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        path = self._socket.getsockname() if self._socket.family == socket.AF_UNIX else None
        self._socket.close()
        if path:
            with suppress(FileNotFoundError):
                os.unlink(path)
        # Tasks of this iteration must start, or their cancellation would not reach `never_made`.
        await asyncio.sleep(0)
        await self._opening.cancel_all()

    def _accept(self) -> None:
        """Accept some connections; the loop calls again if more wait."""
        for _ in range(_ACCEPTS_PER_ITERATION):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            secure = self._context is not None
            link = self._opener.maybe_open(peer_name(address), self.factory, secure=secure)
            if link is None:
                accepted.close()
            else:
                self._opening.spawn(self._open(link, accepted), "accept")

    def _accept_later(self, error: OSError) -> None:
        """Pause accepting: the system is out of something, most likely of file descriptors."""
        log.error("no connections can be accepted for a while", address=self.address, reason=str(error))
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        self._retry = loop.call_later(_ACCEPT_RETRY_S, self.start)

    async def _open(self, link: Link, accepted: socket.socket) -> None:
        """Make a connection of a socket, after the TLS handshake if there is one."""
        options, secure = self._opener.options, self._context is not None
        try:
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: link,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=(options.handshake_s or _NO_LIMIT_S) if secure else None,
                ssl_shutdown_timeout=options.linger_s if secure else None,
            )
        except OSError as error:
            # ssl.SSLError and TimeoutError are subclasses.
            log.debug("a connection ended in its handshake", address=self.address, reason=str(error))
            link.never_made()
        except asyncio.CancelledError:
            link.never_made()
            raise


def bind_tcp(address: str, option: str = "") -> tuple[socket.socket, str]:
    """Bind a socket to host:port; returns it with the real address.

    Args:
        option: that the address is from, to be named if it is in use.

    Raises:
        StartError: the address cannot be used.
    """
    host, port = split_address(address)
    host = host or "0.0.0.0"
    bound: socket.socket | None = None
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(target)
        bound.listen(_BACKLOG)
    except OSError as error:
        if bound is not None:
            bound.close()
        hint = ""
        if option and error.errno == errno.EADDRINUSE:
            hint = f": end the process that has it, or set another {option} (--{option.replace('_', '-')})"
        raise StartError(f"cannot listen on {address}: {error.strerror or error}{hint}") from error
    real = bound.getsockname()[1]
    return bound, f"[{host}]:{real}" if ":" in host else f"{host}:{real}"


def bind_unix(path: str, mode: int) -> tuple[socket.socket, str]:
    """Bind a unix socket to a path, replacing a socket that is there; returns it with its address.

    Args:
        mode: of its file, whatever the umask: who can write it can connect.

    Raises:
        StartError: the path cannot be used.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise StartError(f"cannot listen on {path}: it exists and is not a socket")
            os.unlink(path)
        bound.bind(str(Path(path).absolute()))
        os.chmod(path, mode)  # nobody can connect before it listens
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise StartError(f"cannot listen on {path}: {error.strerror or error}") from error
    except StartError:
        bound.close()
        raise
    return bound, f"unix:{path}"
