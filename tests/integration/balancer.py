"""A TCP load balancer: each connection goes to the next target in turn, or to the one after it if
nothing listens there.

It runs in a thread of its own, so that a test may block.
"""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from tests.integration.relayed import end_connections

_CHUNK_BYTES = 64 << 10


class Balancer:
    """Runs during the `with` block.

    Args:
        targets: addresses, `host:port`.

    Attributes:
        address: where clients connect.
        accepted: number of connections that each target got.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in targets)]
        self.accepted = [0] * len(targets)
        self.address = ""
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer")
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    def __enter__(self) -> "Balancer":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _close(self) -> None:
        await end_connections(self._connections)
        self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also if it had not begun

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: asyncio.StreamWriter | None = None
        try:
            answers, requests = await self._connect()
            await asyncio.gather(_pass(reader, requests), _pass(answers, writer))
        except OSError:
            pass  # one side has gone
        finally:
            if requests is not None:
                requests.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first = self._turn
        self._turn = (first + 1) % len(self._targets)
        for number in range(len(self._targets)):
            at = (first + number) % len(self._targets)
            with suppress(OSError):
                streams = await asyncio.open_connection(*self._targets[at])
                self.accepted[at] += 1
                return streams
        raise ConnectionRefusedError("no target listens")


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes from one side, until its end."""
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()
