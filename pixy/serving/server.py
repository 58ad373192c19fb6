"""A server: any number of listeners, and the life of their connections, whatever these speak.

    start    listeners accept
    drain    every client is told to send new requests elsewhere; requests that come nevertheless
             are served, and so are new connections
    stop     listeners close; every client is told once more, for good; running calls may finish
             within the grace; the rest is cut off

One timer ticks all connections: a tenth of them ten times a second, so that a great many do not
block the loop for long.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

from pixy.aio.steps import in_steps
from pixy.client_address import client_address, share_of
from pixy.clock import Clock
from pixy.config import TlsConfig
from pixy.serving.counters import ConnectionCounters, Counters
from pixy.serving.environment import Environment, ServerOptions
from pixy.serving.link import Link, ProtocolFactory
from pixy.serving.listeners import Listener, TlsFiles, bind_tcp, bind_unix
from pixy.serving.memory import Memory
from pixy.serving.open_calls import ClientCalls

_TICK_S = 1.0
_TICK_PARTS = 10
_CUT_OFF_S = 1.0
"""Time for the last bytes, and for the cancellation of the last handlers."""


class Server:
    """A server in the running event loop.

    Args:
        options: limits.
        clock: the one source of time of all connections.
        on_fault: called with each bug, which has ended a call or a connection.
        rng: spreads the ages of connections.

    Attributes:
        environment: shared by all connections.
    """

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock,
        on_fault: Callable[[BaseException], None],
        rng: Random | None = None,
    ) -> None:
        self.environment = Environment(options, clock, rng or Random(os.urandom(8)), on_fault)
        # By connection, the client that it counts for.
        self._connections: dict[Link, str] = {}
        # By client, each with a connection. Invariant: they count the values of `_connections`.
        self._clients: dict[str, ClientCalls] = {}
        self._listeners: list[Listener] = []
        # Of the listeners.
        self._factories: set[ProtocolFactory] = set()
        # Connections that were not ticked in this second.
        self._unticked: list[Link] = []
        self._ticks = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._reloader: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()

    @property
    def limits_reached(self) -> list[str]:
        """See `LimitLog.reached`."""
        return self.environment.limits.reached

    @property
    def counters(self) -> Counters:
        """Counts since the start."""
        return self.environment.counters.snapshot(self.connection_counters)

    async def counters_in_steps(self) -> Counters:
        """As `counters`, which takes long with thousands of connections."""
        # A connection that ends meanwhile is among the open ones, and not in this copy.
        totals, connections = replace(self.environment.counters), list(self._connections)
        async for connection in in_steps(connections):
            totals.add(connection.counters)
        return totals.snapshot([])._replace(open=len(connections))

    @property
    def connection_counters(self) -> list[ConnectionCounters]:
        """Counts of each open connection."""
        return [connection.counters for connection in self._connections]

    @property
    def memory(self) -> Memory:
        """Memory that connections hold together."""
        return self.environment.memory

    @property
    def connections(self) -> int:
        """Number of connections that are open, or in their handshake."""
        return len(self._connections)

    @property
    def open_calls(self) -> int:
        """Number of calls that have begun and were not answered."""
        return self.environment.open_calls.open

    async def listen(
        self, address: str, factory: ProtocolFactory, tls: TlsConfig | None = None, option: str = ""
    ) -> str:
        """Accept connections on host:port.

        Args:
            address: port 0 takes a free one.
            factory: of their protocol.
            tls: certificates, None for plain text.
            option: that the address is from, to be named if it is in use.

        Returns:
            The address with the real port.

        Raises:
            StartError: the address or a certificate cannot be used.
        """
        files = TlsFiles(tls, factory.alpn) if tls is not None else None
        context = files.context() if files is not None else None
        sock, real = bind_tcp(address, option)
        self._listen(Listener(sock, real, self, factory, files, context))
        if tls is not None and tls.reload_interval and self._reloader is None:
            reloading = self._reload(tls.reload_interval)
            self._reloader = self.environment.tasks.spawn(reloading, "reload certificates")
        return real

    async def listen_unix(self, path: str, factory: ProtocolFactory, mode: int = 0o600) -> str:
        """Accept connections on a unix socket; returns its address.

        Args:
            mode: of its file; by default only the user of this process can connect.

        Raises:
            StartError: the path cannot be used.
        """
        sock, address = bind_unix(path, mode)
        self._listen(Listener(sock, address, self, factory))
        return address

    def begin_drain(self) -> None:
        """Tell connected clients to make new calls elsewhere, and waiting handlers.

        Until `stop`, everything is served as before, new connections too.
        """
        self.environment.draining = True
        for connection in self._connections:
            connection.announce_drain()

    async def stop(self, grace: float) -> None:
        """Let running calls finish for at most `grace` seconds, then close everything."""
        for listener in self._listeners:
            await listener.close()
        if self._reloader is not None:
            self._reloader.cancel()
        for connection in list(self._connections):
            connection.begin_drain(grace)
        await self._wait_empty(grace)
        for connection in list(self._connections):
            connection.end()
        await self._wait_empty(_CUT_OFF_S)
        for connection in list(self._connections):
            connection.abort()
        await self._wait_empty(_CUT_OFF_S)
        if self._ticker is not None:
            self._ticker.cancel()
        for factory in self._factories:
            factory.close()
        self.environment.limits.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await self.environment.tasks.cancel_all()

    # --- for listeners ----------------------------------------------------------------------------

    @property
    def options(self) -> ServerOptions:
        """The limits."""
        return self.environment.options

    def maybe_open(self, peer: str, factory: ProtocolFactory, *, secure: bool) -> Link | None:
        """Open a connection that was accepted, None if there are too many, or too many of its
        client.

        It counts from here on until it is gone.
        """
        client, limit = client_address(peer), ""
        options = self.environment.options
        calls = self._clients.get(client) or ClientCalls()
        if len(self._connections) >= options.connections_max:
            limit = "grpc.max_connections"
        elif calls.connections >= share_of(options.connections_max, options.client_share_percent):
            limit = "client_share_percent of grpc.max_connections"
        if limit:
            self.environment.counters.refused += 1
            self.environment.limits.hit(limit, peer)
            return None
        connection = Link(self.environment, factory, calls, self._closed, secure=secure)
        self._connections[connection] = client
        self._clients[client] = calls
        calls.connections += 1
        return connection

    def note(self, bug: BaseException) -> None:
        """See `Opener`."""
        self.environment.note(bug)

    # --- inside -----------------------------------------------------------------------------------

    def _listen(self, listener: Listener) -> None:
        self._listeners.append(listener)
        self._factories.add(listener.factory)
        listener.start()
        self._tick_later()

    def _closed(self, connection: Link) -> None:
        """A connection is gone."""
        if connection not in self._connections:
            # It was given up while it was made.
            return
        client = self._connections.pop(connection)
        calls = self._clients[client]
        calls.connections -= 1
        if not calls.connections:
            del self._clients[client]
        self.environment.counters.add(connection.counters)
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
        now = self.environment.monotonic()
        begun = now
        for _ in range(len(self._unticked) - len(self._unticked) * parts_left // (parts_left + 1)):
            connection = self._unticked.pop()
            connection.tick(now)
            ended = self.environment.monotonic()
            connection.charge(ended - begun)
            begun = ended
