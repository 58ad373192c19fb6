"""A call of a streaming method: its handler is a coroutine that receives and sends as it likes, with back-pressure both ways.

In: what the client has sent waits in one buffer. It is consumed, which opens the client's windows, when the handler takes a message;
while the handler waits for one, everything is consumed as it comes, or a message larger than the window could never be complete; such
a message is admitted first (`uploads`).

Out: `send` returns when the message is with the transport, or would be if the transport took it: it waits for the client's windows, for
a transport that is full, and for the end of the turn once this turn has enough to write. So a handler that sends without end is
no faster than its client, and lets the others have their turn.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from pixy.futures import reject, resolve
from pixy.http2 import Delivery
from pixy.rpc.call import NOT_A_MESSAGE, Call
from pixy.rpc.headers import CallHeaders
from pixy.rpc.messages import MessageReader, Serialized, pack_pieces
from pixy.rpc.methods import Message
from pixy.rpc.receipts import Receipt
from pixy.rpc.status import OK_TRAILERS, GrpcError, status_fields
from pixy.rpc.unpacking import Unpacker

if TYPE_CHECKING:
    from pixy.rpc.connection import GrpcConnection

__all__ = ["StreamCall"]


class StreamCall(Call):
    """A call with any number of messages in at least one direction."""

    __slots__ = ("_arrived", "_credit", "_ended", "_headers_sent", "_left", "_reader", "_unpacked")

    def __init__(
        self,
        connection: "GrpcConnection",
        stream_id: int,
        head: CallHeaders,
        timeout_s: float | None,
        deadline: float | None,
    ) -> None:
        super().__init__(connection, stream_id, head, timeout_s, deadline)
        self._reader = MessageReader(head.encoding, connection.environment.options.message_bytes_max)
        # Bytes of the buffer that were not consumed. Invariant: at most all of it.
        self._credit = 0
        # Whether the request is complete.
        self._ended = False
        self._headers_sent = False
        # What the handler waits on: that something arrives, and that something that was QUEUED leaves.
        self._arrived: asyncio.Future[None] | None = None
        self._left: asyncio.Future[None] | None = None
        # The message that is being unpacked.
        self._unpacked: asyncio.Future[bytes] | None = None

    def start(self) -> None:
        """Run the handler."""
        self._work = self._connection.spawn(self._serve(), self.method.name)

    # --- for handlers -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> "StreamCall":
        """The messages of the request."""
        return self

    async def __anext__(self) -> Message:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self) -> Message | None:
        """The next message of the request, None at its end. One at a time.

        Raises:
            GrpcError: the request breaks a rule or a limit; let it pass.
        """
        await self._connection.pause()
        body = self._take()
        while body is None:
            if self._ended:
                if self._reader.size:
                    raise self._reader.cut_off()
                return None
            await self._wait()
            body = self._take()
        return await self._parse(body)

    def reserve_output(self, size: int) -> AbstractAsyncContextManager[None]:
        """Have room for an answer of `size` bytes that is still to be made, until it is sent.

        Without it, calls of one connection that make large answers at the same time may make more than the connection accepts, and then
        streams are reset. With it they wait in line, also for clients that do not read: these hold what they have until they are
        cut off.
        """
        return self._connection.output_semaphore.holding(size)

    def send_headers(self) -> None:
        """Send the initial metadata now, rather than with the first message."""
        if not self._headers_sent:
            self._headers_sent = True
            self._connection.core.send_headers(self.stream_id, self._header_fields())
            self._connection.touch()

    async def wait_drain(self) -> None:
        """Return when the client is to open new streams elsewhere, because the server drains or stops, or the connection is old.

        A handler that would run for ever ends its call then. One that does not is cancelled at the end of the grace.
        """
        await self._connection.drain.wait()

    async def send(self, message: Message, receipt: Receipt | None = None) -> None:
        """Send a response of a method that streams them.

        Args:
            message: of the class that the method's descriptor names.
            receipt: told what became of the message, once, perhaps before this returns.
        """
        try:
            serialized = message.SerializeToString()
        except BaseException:
            if receipt is not None:
                self._connection.receipts.undelivered(receipt)
            raise
        await self.send_serialized([serialized], receipt)

    async def send_serialized(self, message: Serialized, receipt: Receipt | None = None) -> None:
        """Send a message that is serialized already; as `send`.

        Args:
            message: its bytes. They are not copied, and must not change any more.
            receipt: as of `send`.
        """
        connection, delivery = self._connection, Delivery.GONE
        try:
            size, delivery = self._begin_send(message)
        finally:
            if receipt is not None:
                connection.receipts.answered(self.stream_id, delivery, receipt)
        if delivery is Delivery.GONE:
            # So little is taken that the stream was reset.
            if self.running:
                self.gone()
            # The cancellation of this task arrives here.
            await asyncio.sleep(0)
        elif delivery is Delivery.QUEUED:
            self._left = asyncio.get_running_loop().create_future()
            try:
                await self._left
            finally:
                self._left = None
        await connection.link.wait_sendable(size)
        await connection.pause()

    # --- for the connection -----------------------------------------------------------------------------------------

    def received(self, source: bytes, begin: int, end: int, *, ended: bool, credit: bool) -> None:
        """See `Call.received`."""
        self._reader.feed(source, begin, end)
        self._ended = ended
        if credit:
            self._credit += end - begin
        if self._arrived is not None:
            self._let_on()
            resolve(self._arrived, None)
        try:
            self._hold()
        except GrpcError as error:
            self._abort(error)

    def unpacked(self, result: bytes | GrpcError) -> None:
        """See `Call.unpacked`."""
        if self._unpacked is None:
            return
        if isinstance(result, GrpcError):
            reject(self._unpacked, result)
        else:
            resolve(self._unpacked, result)

    def sent(self) -> None:
        """See `Call.sent`."""
        if self._left is not None:
            resolve(self._left, None)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _take(self) -> bytearray | Unpacker | None:
        before = self._reader.size
        body = self._reader.take()
        if body is not None:
            self.request_compressed = self._reader.compressed
            self._consume(min(self._credit, before - self._reader.size))
            self._connection.end_part(self.stream_id)
            self._hold()
        return body

    async def _receive_only(self) -> Message:
        """The one message of a request that does not stream.

        Raises:
            GrpcError: as `receive`; UNIMPLEMENTED, there is none, or more than one.
        """
        while not self._ended:
            self._reader.check_only()
            await self._wait()
        body = self._reader.take_only()
        self._consume(self._credit)
        self._hold()
        self.request_compressed = self._reader.compressed
        return await self._parse(body)

    def _begin_send(self, message: Serialized) -> tuple[int, Delivery]:
        """Give a message to the core; returns its size, and what became of it."""
        self.send_headers()
        connection = self._connection
        size, delivery = 0, Delivery.SENT
        for piece in pack_pieces(message, compressed=self._compresses()):
            size += len(piece)
            if len(piece) > connection.core.send_capacity:
                connection.make_room()
            delivery = connection.core.send_data(self.stream_id, piece)
            if delivery is Delivery.GONE:
                break
        connection.touch()
        return size, delivery

    async def _parse(self, body: bytearray | Unpacker) -> Message:
        message = await self._unpack(body) if isinstance(body, Unpacker) else body
        try:
            return self.method.parse(message)
        except DecodeError:
            raise NOT_A_MESSAGE from None

    async def _unpack(self, packed: Unpacker) -> bytes:
        """Unpack a message, in the turns of the connection."""
        self._unpacked = asyncio.get_running_loop().create_future()
        self._connection.unpack(self, packed)
        try:
            return await self._unpacked
        finally:
            self._unpacked = None

    async def _wait(self) -> None:
        """Wait until something arrives; everything that has is consumed."""
        assert self._arrived is None, "one receives at a time"
        self._let_on()
        self._hold()
        self._arrived = asyncio.get_running_loop().create_future()
        try:
            await self._arrived
        finally:
            self._arrived = None

    def _let_on(self) -> None:
        """The handler waits for the rest of a message: let the client send it, when it is admitted."""
        if self._reader.size and self.running:
            size, self._credit = self._credit, 0
            self._connection.receive_part(self.stream_id, self._reader.expected, size)

    def _consume(self, size: int) -> None:
        if size and self.running:
            self._credit -= size
            self._connection.consumed(self.stream_id, size)

    def _hold(self) -> None:
        """What is in the buffer and does not take up room in the client's windows is held against a limit of its own."""
        if self.running:
            self._connection.hold(self.stream_id, self._reader.size - self._credit)

    async def _serve(self) -> None:
        method = self.method
        assert method.stream is not None
        try:
            if not method.client_streams:
                await method.stream(await self._receive_only(), self)
            elif method.server_streams:
                await method.stream(self)
            else:
                await self.send(await method.stream(self))
        except Exception as error:
            self.fail(error)
        else:
            if self.running:
                self._finish()

    def _finish(self) -> None:
        """The answer is complete."""
        connection, trailers = self._connection, self._trailers(OK_TRAILERS)
        try:
            self._settle()
            if not self._headers_sent:
                connection.core.send_headers(self.stream_id, self._header_fields())
            connection.core.send_trailers(self.stream_id, trailers)
        except Exception as bug:
            connection.broken(bug)
        connection.touch()

    def _refuse(self, error: GrpcError) -> None:
        if not self._headers_sent:
            super()._refuse(error)
            return
        self._connection.core.send_trailers(self.stream_id, self._trailers(status_fields(error)))
        self._connection.touch()
