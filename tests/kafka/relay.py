"""A relay between the backend and its brokers that a test can cut at the worst moment.

Pass `Relay.dial` to a backend: its connections go through the relay. A broker's answers are passed
on, or, while `lose_answers` counts down, dropped together with the connection. The relay can stop
everything at one kind of request, before the broker has it or before the client has the answer,
like a process killed there. Or it holds one request there, so that a test can manipulate the
brokers at that moment.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.conn import create_conn

PRODUCE = 0


class Relay:
    """Passes requests and answers between connections.

    Attributes:
        lose_answers: number of next answers to requests of the kind `lose` (Produce) to drop.
        stop_before, stop_after: kind of request at which everything stops: nothing is passed on
            from then on.
        stopped: set when that has happened.
        hold_before, hold_after: kind of request of which the next one is held: before the broker
            has it, or after it, in which case its answer is lost.
        held: set when that has happened.
        go_on: set by the test to release the held request.
        lost: number of answers dropped.
        delay_s: delay of every answer, one after the other.
        connections: total number of connections.
        requests: number of requests passed on.
    """

    def __init__(self) -> None:
        self.lose_answers = 0
        self.lose = PRODUCE
        self.stop_before: int | None = None
        self.stop_after: int | None = None
        self.stopped = asyncio.Event()
        self.hold_before: int | None = None
        self.hold_after: int | None = None
        self.held = asyncio.Event()
        self.go_on = asyncio.Event()
        self.lost = 0
        self.delay_s = 0.0
        self.connections = 0
        self.requests = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def dial(self, host: str, port: int, **options: Any) -> Any:
        """aiokafka's `create_conn`."""
        if self.stopped.is_set():
            raise ConnectionRefusedError("the relay has stopped")
        self.connections += 1
        server = await asyncio.start_server(
            lambda reader, writer: self._pass(reader, writer, host, port), "127.0.0.1", 0
        )
        relay_port = server.sockets[0].getsockname()[1]
        try:
            connection = await create_conn("127.0.0.1", relay_port, **options)
        finally:
            server.close()
        # The client compares its peer's address with the metadata.
        connection._host, connection._port = host, port
        return connection

    async def stop(self) -> None:
        """Cut everything."""
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, broker_writer}
        keys: asyncio.Queue[int] = asyncio.Queue()
        halves = [
            asyncio.create_task(self._requests(reader, broker_writer, keys)),
            asyncio.create_task(self._answers(broker_reader, writer, keys)),
        ]
        self._tasks.update(halves)
        await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        for half in halves:
            half.cancel()
        await asyncio.gather(*halves, return_exceptions=True)
        self._tasks.difference_update(halves)
        for each in (writer, broker_writer):
            each.transport.abort()
            self._writers.discard(each)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: "asyncio.Queue[int]"
    ) -> None:
        while frame := await _frame(reader):
            key = int.from_bytes(frame[4:6], "big")
            if key == self.stop_before:
                self.stopped.set()
            if self.stopped.is_set():
                return
            if key == self.hold_before:
                self.hold_before = None
                await self._hold()
            self.requests += 1
            keys.put_nowait(key)
            writer.write(frame)
            await writer.drain()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: "asyncio.Queue[int]"
    ) -> None:
        while frame := await _frame(reader):
            key = await keys.get()
            if key == self.stop_after:
                self.stopped.set()
            if self.stopped.is_set():
                return
            if key == self.hold_after:
                self.hold_after = None
                await self._hold()
                return
            if key == self.lose and self.lose_answers:
                self.lose_answers -= 1
                self.lost += 1
                return
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(frame)
            await writer.drain()

    async def _hold(self) -> None:
        self.held.set()
        await self.go_on.wait()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One request or answer with its size prefix; empty at the end."""
    try:
        size = await reader.readexactly(4)
        return size + await reader.readexactly(int.from_bytes(size, "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@asynccontextmanager
async def open_relay() -> AsyncIterator[Relay]:
    """A relay, cut at the end."""
    relay = Relay()
    try:
        yield relay
    finally:
        await relay.stop()
