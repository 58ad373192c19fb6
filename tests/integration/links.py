"""TCP relays between nodes: every connection to a node goes through its relay, which can delay it,
lose segments, hold what one side sends, and reset it.

The relay finds the node that dials by the process that owns the socket, so nodes need no addresses
of their own for each peer. It works on streams: what TCP would send again after a loss arrives
late, and what cannot pass waits, as in the sender's buffers. While a link is cut in either
direction, connections are accepted and nothing happens on them, like a handshake that gets no
answer; the end of a connection does not pass either.

The relays run in a thread of their own, so that a test may block while nodes talk.
"""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

from tests.integration.networks import GRPC_PORT, PEER_PORT, free_hosts
from tests.integration.relayed import end_connections

T = TypeVar("T")

_CHUNK_BYTES = 64 << 10
_CHUNKS_MAX = 64
"""Bound of what waits in one direction of a connection, like the buffers of two sockets."""
_SEGMENT_BYTES = 1448
_NO_LINGER = struct.pack("ii", 1, 0)
_RETRANSMISSION_S_MIN = 0.2
"""Linux's minimum of the time after which TCP sends a lost segment again."""


class _Link:
    """One direction between two nodes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        # Set while bytes pass.
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0
        self.loss = 0.0

    def transit_s(self, size: int) -> float:
        """Time that so many bytes take."""
        segments = -(-size // _SEGMENT_BYTES) or 1
        if self._random.random() < 1 - (1 - self.loss) ** segments:
            return self.delay_s + max(_RETRANSMISSION_S_MIN, 2 * self.delay_s)
        return self.delay_s


class _Direction:
    """Bytes of one side of a connection, on their way to the other side."""

    def __init__(self, link: _Link, reader: asyncio.StreamReader) -> None:
        self._link = link
        self._reader = reader
        # Chunks with the time at which they arrive; b"" is the end, None a reset.
        self._chunks: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_CHUNKS_MAX)
        self.ended = False

    async def take(self) -> None:
        """Take what is sent, until the end."""
        due = 0.0
        chunk: bytes | None = None
        while not self.ended:
            try:
                chunk = await self._reader.read(_CHUNK_BYTES)
            except ConnectionError:
                chunk = None
            self.ended = not chunk
            due = max(due, asyncio.get_running_loop().time() + self._link.transit_s(len(chunk or b"")))
            await self._chunks.put((due, chunk))

    async def give(self, writer: asyncio.StreamWriter) -> None:
        """Pass it on, until the end."""
        while True:
            due, chunk = await self._chunks.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await self._link.open.wait()
            if chunk is None:
                _reset(writer)
                return
            # A side that has gone says so itself, by what it sends.
            with suppress(ConnectionError, RuntimeError):
                if not chunk:
                    writer.write_eof()
                    return
                writer.write(chunk)
                await writer.drain()


class Links:
    """The relays of a cluster; a `Network`.

    Args:
        nodes: number of nodes.
        seed: of the losses.
    """

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self._numbers = range(1, nodes + 1)
        hosts = free_hosts(2 * nodes)
        self._relays, self._hosts = hosts[:nodes], hosts[nodes:]
        self._pids: dict[int, int] = {}
        random = Random(seed)
        self._links = {(one, other): _Link(random) for one in self._numbers for other in self._numbers}
        # Open connections, with the nodes that dialled and accepted them.
        self._connections: dict[asyncio.Task[None], frozenset[int]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")
        self._thread.start()
        self._servers = self._do(self._listen)

    def listening(self, node: int) -> str:
        return f"{self._hosts[node - 1]}:{PEER_PORT}"

    def advertised(self, node: int) -> str:
        return f"{self._relays[node - 1]}:{PEER_PORT}"

    def grpc(self, node: int) -> str:
        return f"{self._hosts[node - 1]}:{GRPC_PORT}"

    def prefix(self, node: int) -> Sequence[str]:
        return ()

    def joined(self, node: int, pid: int) -> None:
        self._pids[node] = pid

    def cut(self, source: int, target: int) -> None:
        """Hold everything that `source` sends to `target`, until `heal`."""

        async def close() -> None:
            self._links[source, target].open.clear()

        self._do(close)

    def slow_down(self, delay_s: float, loss: float) -> None:
        """Delay everything between different nodes, and lose a share of the segments, which arrive
        later.
        """

        async def change() -> None:
            for (source, target), link in self._links.items():
                if source != target:
                    link.delay_s, link.loss = delay_s, loss

        self._do(change)

    def reset(self, one: int, other: int) -> None:
        """Reset all connections between two nodes."""

        async def reset() -> None:
            affected = [task for task, pair in self._connections.items() if pair == {one, other}]
            for task in affected:
                task.cancel()
            await asyncio.gather(*affected, return_exceptions=True)

        self._do(reset)

    def heal(self) -> None:
        async def heal() -> None:
            for link in self._links.values():
                link.delay_s = link.loss = 0.0
                link.open.set()

        self._do(heal)

    def close(self) -> None:
        async def close() -> None:
            await end_connections(self._connections)
            for server in self._servers:
                server.close()

        self._do(close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run something in the thread of the relays."""

        async def run() -> T:
            return await action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def _listen(self) -> list[asyncio.Server]:
        return [
            await asyncio.start_server(self._acceptor(node), relay, PEER_PORT)
            for node, relay in zip(self._numbers, self._relays, strict=True)
        ]

    def _acceptor(self, target: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            source = self._dialler(writer)
            if source is None:
                _reset(writer)
                return
            task = asyncio.create_task(self._relay(source, target, reader, writer))
            self._connections[task] = frozenset((source, target))
            task.add_done_callback(self._connections.pop)
            task.add_done_callback(lambda _: _reset(writer))  # also if it was cancelled before it began

        return accept

    def _dialler(self, writer: asyncio.StreamWriter) -> int | None:
        """The node whose process has the other end of a connection; None if it has gone."""
        inode = _inode(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        found = (node for node, pid in self._pids.items() if inode and _has_socket(pid, inode))
        return next(found, None)

    async def _relay(
        self, source: int, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = self._links[source, target], self._links[target, source]
        dialled = _Direction(there, reader)
        taking = asyncio.create_task(dialled.take())
        requests_to: asyncio.StreamWriter | None = None
        tasks = [taking]
        try:
            while not (there.open.is_set() and back.open.is_set()):
                await there.open.wait()
                await back.open.wait()
            if dialled.ended:
                return  # it gave up: its peer never hears of it
            answers_from, requests_to = await asyncio.open_connection(self._hosts[target - 1], PEER_PORT)
            answered = _Direction(back, answers_from)
            tasks += [
                asyncio.create_task(work)
                for work in (dialled.give(requests_to), answered.take(), answered.give(writer))
            ]
            await asyncio.gather(*tasks)
        except OSError:
            pass  # nobody listens there
        finally:
            # Before it waits: a cancellation may come meanwhile.
            if requests_to is not None:
                _reset(requests_to)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, or at least after its end."""
    with suppress(OSError):  # it is closed
        own: socket.socket = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


def _inode(local: tuple[str, int], remote: tuple[str, int]) -> str:
    """Inode of the socket with these addresses on this machine; empty if there is none."""
    wanted = [_encoded(local), _encoded(remote)]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return fields[9]
    return ""


def _encoded(address: tuple[str, int]) -> str:
    host, port = address
    return "".join(f"{int(part):02X}" for part in reversed(host.split("."))) + f":{port:04X}"


def _has_socket(pid: int, inode: str) -> bool:
    with suppress(OSError):  # it has ended
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") == f"socket:[{inode}]":
                    return True
    return False
