"""A gRPC server: any services, any number of listeners, and the life of their connections.

    start    listeners accept
    drain    every client is told to open no more streams (GOAWAY); streams that come nevertheless
             are served, and so are new connections
    stop     listeners close; every client gets a second, final GOAWAY (RFC 9113 §6.8); running
             calls may finish within the grace; the rest is cut off

One timer ticks all connections: a tenth of them ten times a second, so that a great many do not
block the loop for long.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random

from pixy.client_address import client_address, share_of
from pixy.clock import Clock
from pixy.config import TlsConfig
from pixy.rpc.connection import GrpcConnection
from pixy.rpc.counters import ConnectionCounters, Counters
from pixy.rpc.environment import Environment, ServerOptions
from pixy.rpc.interception import Interceptor, principal_of_certificate
from pixy.rpc.link import Link
from pixy.rpc.listeners import Listener, TlsFiles, bind_tcp, bind_unix
from pixy.rpc.memory import Memory
from pixy.rpc.methods import Service, method_table
from pixy.rpc.open_calls import ClientCalls

__all__ = ["RpcServer"]

_TICK_S = 1.0
_TICK_PARTS = 10
_CUT_OFF_S = 1.0
"""Time for the last bytes, and for the cancellation of the last handlers."""


class RpcServer:
    """A server in the running event loop.

    Args:
        services: with their handlers.
        options: limits.
        clock: the one source of time of all connections.
        on_fault: called with each bug, which has ended a call or a connection.
        rng: spreads the ages of connections.
        intercept: sees each call before its handler, see `interception`.
    """

    def __init__(
        self,
        services: Iterable[Service],
        options: ServerOptions,
        clock: Clock,
        on_fault: Callable[[BaseException], None],
        rng: Random | None = None,
        intercept: Interceptor = principal_of_certificate,
    ) -> None:
        self._environment = Environment(
            method_table(services), options, clock, rng or Random(os.urandom(8)), on_fault, intercept
        )
        # By connection, the client that it counts for.
        self._connections: dict[GrpcConnection, str] = {}
        # By client, each with a connection. Invariant: they count the values of `_connections`.
        self._clients: dict[str, ClientCalls] = {}
        self._listeners: list[Listener] = []
        # Connections that were not ticked in this second.
        self._unticked: list[GrpcConnection] = []
        self._ticks = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._reload_s = 0.0
        self._reloader: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()

    @property
    def limits_reached(self) -> list[str]:
        """See `LimitLog.reached`."""
        return self._environment.limits.reached

    @property
    def counters(self) -> Counters:
        """Counts since the start."""
        return self._environment.counters.snapshot(self.connection_counters)

    @property
    def connection_counters(self) -> list[ConnectionCounters]:
        """Counts of each open connection."""
        return [connection.counters for connection in self._connections]

    @property
    def memory(self) -> Memory:
        """Memory that connections hold together."""
        return self._environment.memory

    @property
    def connections(self) -> int:
        """Number of connections that are open, or in their handshake."""
        return len(self._connections)

    async def listen(self, address: str, tls: TlsConfig | None = None) -> str:
        """Accept connections on host:port.

        Args:
            address: port 0 takes a free one.
            tls: certificates, None for plain text.

        Returns:
            The address with the real port.

        Raises:
            StartError: the address or a certificate cannot be used.
        """
        files = TlsFiles(tls) if tls is not None else None
        context = files.context() if files is not None else None
        sock, real = bind_tcp(address)
        self._listen(Listener(sock, real, self, files, context))
        if tls is not None and tls.reload_interval and self._reloader is None:
            reloading = self._reload(tls.reload_interval)
            self._reloader = self._environment.tasks.spawn(reloading, "reload certificates")
        return real

    async def listen_unix(self, path: str) -> str:
        """Accept connections on a unix socket; returns its address.

        Raises:
            StartError: the path cannot be used.
        """
        sock, address = bind_unix(path)
        self._listen(Listener(sock, address, self))
        return address

    def begin_drain(self) -> None:
        """Tell connected clients to make new calls elsewhere (GOAWAY), and waiting handlers.

        Until `stop`, everything is served as before, new connections too.
        """
        self._environment.draining = True
        for connection in self._connections:
            connection.link.announce_drain()

    async def stop(self, grace: float) -> None:
        """Let running calls finish for at most `grace` seconds, then close everything."""
        for listener in self._listeners:
            await listener.close()
        if self._reloader is not None:
            self._reloader.cancel()
        for connection in list(self._connections):
            connection.link.begin_drain(grace)
        await self._wait_empty(grace)
        for connection in list(self._connections):
            connection.link.end()
        await self._wait_empty(_CUT_OFF_S)
        for connection in list(self._connections):
            connection.link.abort()
        await self._wait_empty(_CUT_OFF_S)
        if self._ticker is not None:
            self._ticker.cancel()
        self._environment.deadlines.close()
        self._environment.limits.stop()
        self._environment.strangers.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await self._environment.tasks.cancel_all()

    @property
    def open_calls(self) -> int:
        """Number of calls that have begun and were not answered."""
        return self._environment.open_calls.open

    # --- for listeners ----------------------------------------------------------------------------

    @property
    def options(self) -> ServerOptions:
        """The limits."""
        return self._environment.options

    def maybe_open(self, peer: str, *, secure: bool) -> Link | None:
        """Open a connection that was accepted, None if there are too many, or too many of its
        client.

        It counts from here on until it is gone.
        """
        client, limit = client_address(peer), ""
        options = self._environment.options
        calls = self._clients.get(client) or ClientCalls()
        if len(self._connections) >= options.connections_max:
            limit = "grpc.max_connections"
        elif calls.connections >= share_of(options.connections_max, options.client_share_percent):
            limit = "client_share_percent of grpc.max_connections"
        if limit:
            self._environment.counters.refused += 1
            self._environment.limits.hit(limit, peer)
            return None
        connection = GrpcConnection(self._environment, calls, self._closed, secure=secure)
        self._connections[connection] = client
        self._clients[client] = calls
        calls.connections += 1
        return connection.link

    def note(self, bug: BaseException) -> None:
        """See `Opener`."""
        self._environment.note(bug)

    # --- inside -----------------------------------------------------------------------------------

    def _listen(self, listener: Listener) -> None:
        self._listeners.append(listener)
        listener.start()
        self._tick_later()

    def _closed(self, connection: GrpcConnection) -> None:
        """A connection is gone."""
        if connection not in self._connections:
            # It was given up while it was made.
            return
        client = self._connections.pop(connection)
        calls = self._clients[client]
        calls.connections -= 1
        if not calls.connections:
            del self._clients[client]
        self._environment.counters.add(connection.counters)
        if not self._connections:
            self._empty.set()

    async def _wait_empty(self, seconds: float) -> None:
        if self._connections and seconds > 0:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                return

    async def _reload(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            self.maybe_reload()

    def maybe_reload(self) -> None:
        """Use certificates that have changed."""
        for listener in self._listeners:
            listener.maybe_reload()

    def _tick_later(self) -> None:
        if self._ticker is None:
            loop = asyncio.get_running_loop()
            self._ticker = loop.call_later(_TICK_S / _TICK_PARTS, self._tick)

    def _tick(self) -> None:
        """Tick a tenth of the connections."""
        self._ticker = None
        self._tick_later()
        if not self._ticks:
            self._unticked = list(self._connections)
        self._ticks = (self._ticks + 1) % _TICK_PARTS
        parts_left = (_TICK_PARTS - self._ticks) % _TICK_PARTS
        now = self._environment.monotonic()
        begun = now
        for _ in range(len(self._unticked) - len(self._unticked) * parts_left // (parts_left + 1)):
            connection = self._unticked.pop()
            connection.tick(now)
            ended = self._environment.monotonic()
            connection.charge(ended - begun)
            begun = ended
