"""Streaming calls: a handler is a coroutine that receives and sends, with back-pressure both ways.

In: received bytes wait in one buffer. The client's flow-control windows are replenished when the
handler takes a message. While the handler waits for one, they are replenished as bytes come:
otherwise a message larger than the window would never be complete. Such a message is admitted first
(`uploads`).

Out: `send` suspends for the client's windows, for a transport that is full, and, once the
connection has sent enough, for the end of this iteration of the loop. So a handler that sends
without end is no faster than its client, and yields to others.
"""

import asyncio
from contextlib import AbstractAsyncContextManager

from google.protobuf.message import DecodeError

from pixy.aio.futures import reject, resolve
from pixy.http2 import Delivery
from pixy.large_fields import Serialized
from pixy.rpc.call import NOT_A_MESSAGE, Call
from pixy.rpc.call_host import CallHost
from pixy.rpc.headers import CallHeaders
from pixy.rpc.messages import MessageReader, pack_pieces
from pixy.rpc.methods import Message
from pixy.rpc.status import OK_TRAILERS, GrpcError, Status, status_fields
from pixy.rpc.unpacking import Unpacker
from pixy.serving import Receipt


class StreamCall(Call):
    """A call with any number of messages in at least one direction."""

    __slots__ = (
        "_ended",
        "_headers_sent",
        "_reader",
        "_receiving",
        "_sending",
        "_unpacking",
        "_windowed_bytes",
    )

    def __init__(
        self,
        connection: CallHost,
        stream_id: int,
        head: CallHeaders,
        timeout_s: float | None,
        began: float,
    ) -> None:
        super().__init__(connection, stream_id, head, timeout_s, began)
        self._reader = MessageReader(head.encoding, connection.environment.options.message_bytes_max)
        # Bytes of the buffer that occupy the client's windows. Invariant: at most all of it.
        self._windowed_bytes = 0
        # The request is complete.
        self._ended = False
        self._headers_sent = False
        # The handler waits for bytes, for QUEUED data to be sent, or for a decompressed message.
        self._receiving: asyncio.Future[None] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._unpacking: asyncio.Future[bytes] | None = None

    def start(self) -> None:
        """Run the handler."""
        self._work = self._connection.spawn(self._serve(), self.method.name)

    # --- for handlers -----------------------------------------------------------------------------

    def __aiter__(self) -> "StreamCall":
        """Iterate over the requests."""
        return self

    async def __anext__(self) -> Message:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self) -> Message | None:
        """The next request, None at the end. One task at a time.

        Raises:
            GrpcError: the request breaks a rule or a limit. It ends the call if the handler lets it
                pass.
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
        """Acquire output for a response of `size` bytes, from before it is made until it is sent.

        Without it, the calls of one connection that make large responses at the same time may
        exceed what the connection accepts, which resets their streams. With it they queue, also
        behind clients that do not read: these hold their output until they are cut off.
        """
        return self._connection.output_semaphore.holding(size)

    def send_headers(self) -> None:
        """Send the initial metadata now, rather than with the first message."""
        if not self._headers_sent:
            self._headers_sent = True
            self._connection.core.send_headers(self.stream_id, self._header_fields())
            self._connection.link.touch()

    async def wait_drain(self) -> None:
        """Return when a drain begins: of the server, or of a connection that has reached its age.

        The client opens new streams elsewhere. A handler without an end of its own should end the
        call then. Otherwise it is cancelled when the grace is over.
        """
        await self._connection.drain_event.wait()

    async def send(self, message: Message, receipt: Receipt | None = None) -> None:
        """Send a response of a method that streams them.

        Args:
            message: of the class that the method's descriptor names.
            receipt: told the outcome of the message, possibly before this returns.
        """
        try:
            assert self.method.server_streams, (
                f"{self.method.name} has one response, which its handler returns"
            )
            serialized: Serialized = [message.SerializeToString()]
        except BaseException:
            if receipt is not None:
                self._connection.receipts.undelivered(receipt)
            raise
        await self.send_serialized(serialized, receipt)

    async def send_serialized(self, message: Serialized, receipt: Receipt | None = None) -> None:
        """Send a serialized response; as `send`.

        Args:
            message: its bytes, which are not copied and must not change any more. The list is
                emptied: pieces that were sent are not kept until the last one is.
            receipt: as for `send`.
        """
        connection, delivery = self._connection, Delivery.GONE
        try:
            size, delivery = self._begin_send(message)
            message.clear()
        finally:
            if receipt is not None:
                connection.take_receipt(self.stream_id, delivery, receipt)
        if delivery is Delivery.GONE:
            # The client takes too little: the stream was reset.
            if self.running:
                self.gone()
            # This task's cancellation arrives here.
            await asyncio.sleep(0)
        elif delivery is Delivery.QUEUED:
            self._sending = asyncio.get_running_loop().create_future()
            try:
                await self._sending
            finally:
                self._sending = None
        await connection.link.wait_sendable(size)
        await connection.pause()

    # --- for the connection -----------------------------------------------------------------------

    def received(self, source: bytes, begin: int, end: int, *, ended: bool, windowed: bool) -> None:
        """See `Call.received`."""
        self._reader.feed(source, begin, end)
        self._ended = ended
        if windowed:
            self._windowed_bytes += end - begin
        if self._receiving is not None:
            self._accept_rest()
            resolve(self._receiving, None)
        try:
            self._hold()
        except GrpcError as error:
            self._abort(error)

    def unpacked(self, result: bytes | GrpcError) -> None:
        """See `Call.unpacked`."""
        if self._unpacking is None:
            return
        if isinstance(result, GrpcError):
            reject(self._unpacking, result)
        else:
            resolve(self._unpacking, result)

    def sent(self) -> None:
        """See `Call.sent`."""
        if self._sending is not None:
            resolve(self._sending, None)

    # --- inside -----------------------------------------------------------------------------------

    def _take(self) -> bytearray | Unpacker | None:
        before = self._reader.size
        body = self._reader.take()
        if body is not None:
            self.request_compressed = self._reader.compressed
            self._replenish(min(self._windowed_bytes, before - self._reader.size))
            self._connection.incomplete.end_part(self.stream_id)
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
        self._replenish(self._windowed_bytes)
        self._hold()
        self.request_compressed = self._reader.compressed
        return await self._parse(body)

    def _begin_send(self, message: Serialized) -> tuple[int, Delivery]:
        """Give a message to the core; returns its size and the delivery of its last byte."""
        self.send_headers()
        connection = self._connection
        size, delivery = 0, Delivery.SENT
        for piece in pack_pieces(message, compressed=self._compresses()):
            size += len(piece)
            if len(piece) > connection.core.send_capacity:
                connection.make_room(len(piece))
            delivery = connection.core.send_data(self.stream_id, piece)
            if delivery is Delivery.GONE:
                break
        connection.link.touch()
        return size, delivery

    async def _parse(self, body: bytearray | Unpacker) -> Message:
        message = await self._unpack(body) if isinstance(body, Unpacker) else body
        if len(message) >= self.method.checked_bytes_min:
            self.method.check(message)
        try:
            return self.method.parse(message)
        except DecodeError:
            raise NOT_A_MESSAGE from None

    async def _unpack(self, packed: Unpacker) -> bytes:
        """Decompress a message, as a job of the connection."""
        self._unpacking = asyncio.get_running_loop().create_future()
        self._connection.unpack(self, packed)
        try:
            return await self._unpacking
        finally:
            self._unpacking = None

    async def _wait(self) -> None:
        """Wait for bytes, and let the client send them."""
        assert self._receiving is None, "one task receives at a time"
        self._accept_rest()
        self._hold()
        self._receiving = asyncio.get_running_loop().create_future()
        try:
            await self._receiving
        finally:
            self._receiving = None

    def _accept_rest(self) -> None:
        """Let the client send the rest of a message, once it is admitted: the handler waits for
        it.
        """
        if self._reader.size and self.running:
            size, self._windowed_bytes = self._windowed_bytes, 0
            self._connection.incomplete.receive_part(self.stream_id, self._reader.expected, size)

    def _replenish(self, size: int) -> None:
        if size and self.running:
            self._windowed_bytes -= size
            self._connection.replenish(self.stream_id, size)

    def _hold(self) -> None:
        """Count buffered bytes outside the client's windows against the connection's limit."""
        if self.running:
            self._connection.incomplete.hold(self.stream_id, self._reader.size - self._windowed_bytes)

    async def _serve(self) -> None:
        method = self.method
        assert method.stream is not None
        try:
            if not method.client_streams:
                await method.stream(await self._receive_only(), self)
            elif method.server_streams:
                await method.stream(self)
            else:
                response = await method.stream(self)
                await self.send_serialized([response.SerializeToString()])
        except Exception as error:
            self.fail(error)
        else:
            if self.running:
                self._finish()

    def _finish(self) -> None:
        """End the call with status OK."""
        connection, trailers = self._connection, self._trailers(OK_TRAILERS)
        self.method.counts.ended[Status.OK] += 1
        try:
            self._settle()
            if not self._headers_sent:
                connection.core.send_headers(self.stream_id, self._header_fields())
            connection.core.send_trailers(self.stream_id, trailers)
        except Exception as bug:
            connection.broken(bug)
        connection.link.touch()

    def _refuse(self, error: GrpcError) -> None:
        if not self._headers_sent:
            super()._refuse(error)
            return
        self._connection.core.send_trailers(self.stream_id, self._trailers(status_fields(error)))
        self._connection.link.touch()
