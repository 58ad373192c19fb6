"""A call: its head, its deadline and its end. `UnaryCall` is the kind that costs no task.

A call runs from its request until the first of these:

    answer, fail           by its handler
    deadline exceeded      the client is told, the handler's work is cancelled
    reset or connection    the client is gone, the handler's work is cancelled
    lost

Later answers are ignored. The receipt of an answer is told exactly once, see `receipts`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from google.protobuf.message import DecodeError

from pixy.client_address import client_address
from pixy.http2 import Delivery, Field, ResponseTemplate
from pixy.large_fields import Serialized
from pixy.rpc.call_host import CallHost
from pixy.rpc.field_limits import SMALL_REQUEST_BYTES
from pixy.rpc.headers import ANSWER_HEADERS, CallHeaders
from pixy.rpc.joined import JoinedMessage
from pixy.rpc.messages import (
    PREFIX_BYTES,
    Encoding,
    MessageReader,
    pack_message,
    pack_pieces,
    unpack_prefix,
)
from pixy.rpc.metadata import decode_metadata, encode_metadata
from pixy.rpc.methods import Cancellable, Message, Method, UnaryFunction
from pixy.rpc.status import OK_TRAILERS, GrpcError, Status, status_fields
from pixy.rpc.unpacking import Unpacker
from pixy.serving import Receipt

NOT_A_MESSAGE = GrpcError(Status.INTERNAL, "the request does not parse as the method's message")

_PATIENT_PART = 0.5
"""A reset costs no token if this part of the time until the call's deadline was over."""
_OK = ResponseTemplate(ANSWER_HEADERS, OK_TRAILERS)


class Call:
    """A call of a method.

    Args:
        connection: of the client.
        stream_id: its stream.
        head: its header section, which names the method.
        timeout_s: seconds from its arrival to its deadline, None without one.
        began: time of its arrival, in seconds on the server's clock.
    """

    __slots__ = (
        "__dict__",
        "_connection",
        "_work",
        "began",
        "head",
        "running",
        "stream_id",
        "timeout_s",
    )

    # Fields that few calls use are no slots but defaults of the class: each slot would take a tenth
    # of the constructor's time.
    timed = False
    """`Deadlines` knows the deadline."""
    compress = False
    """Compress messages of the answer, if the client accepts that."""
    request_compressed = False
    """The last message of the request was compressed."""
    _request_memory: int | None = None
    """Bytes that the parsed request of a plain function counts for, in its `parsed_semaphores`."""
    _partial: MessageReader | None = None
    """The incomplete request of a unary call that does not come in one piece."""
    _additions: tuple[list[Field], list[Field]] | None = None
    """Metadata of the answer, in its header section and its trailers; None while there is none."""

    def __init__(
        self,
        connection: CallHost,
        stream_id: int,
        head: CallHeaders,
        timeout_s: float | None,
        began: float,
    ) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.head = head
        self.running = True
        self.timeout_s = timeout_s
        self.began = began
        # Cancelled if the call ends before its handler has answered.
        self._work: Cancellable | None = None

    # --- for handlers -----------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """Seconds on the server's clock, None without one."""
        return None if self.timeout_s is None else self.began + self.timeout_s

    @property
    def method(self) -> Method:
        """The method."""
        method = self.head.method
        assert method is not None
        return method

    @property
    def metadata(self) -> list[tuple[str, str | bytes]]:
        """The client's metadata.

        Raises:
            GrpcError: INTERNAL, malformed binary metadata.
        """
        try:
            return decode_metadata(self.head.fields)
        except ValueError as error:
            raise GrpcError(Status.INTERNAL, str(error)) from error

    def add_initial_metadata(self, key: str, value: str | bytes) -> None:
        """Send metadata before the answer, of which nothing has been sent yet.

        Raises:
            ValueError: as `encode_metadata`.
        """
        self._added()[0].extend(encode_metadata([(key, value)]))

    def add_trailing_metadata(self, key: str, value: str | bytes) -> None:
        """Send metadata after the answer.

        Raises:
            ValueError: as `encode_metadata`.
        """
        self._added()[1].extend(encode_metadata([(key, value)]))

    @property
    def principal(self) -> str:
        """The caller's principal, see `interception`; "" for an anonymous caller."""
        return self.head.principal

    @property
    def answer_bytes_max(self) -> int:
        """Bytes that the connection takes of an answer."""
        return self._connection.environment.options.http2.output_bytes

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._connection.link.peer

    def fail(self, error: Exception, receipt: Receipt | None = None) -> None:
        """End the call with the status of an error; INTERNAL for a bug.

        Args:
            error: of the handler.
            receipt: of the answer that could not be made.
        """
        translated = self._connection.environment.status_of(error, self.method)
        if receipt is not None:
            self._connection.receipts.undelivered(receipt)
        if self.running:
            self._abandon(translated)

    def first_step(self, step: Callable[[], None]) -> None:
        """As `step_later`, for a handler that was just called: at once, while the present step of
        the connection has time.
        """
        if self._connection.workload.step_over:
            self.step_later(step)
        else:
            self._do(step)

    def step_later(self, step: Callable[[], None]) -> None:
        """Do a part of the handler's work, of a fraction of a millisecond, in a step of its
        connection, also if the call has ended by then. A bug ends the call.
        """
        self._connection.workload.queue(partial(self._do, step))

    def _do(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as bug:
            self.fail(bug)

    # --- for the connection -----------------------------------------------------------------------

    def received(self, source: bytes, begin: int, end: int, *, ended: bool, windowed: bool) -> None:
        """The request continues with `source` from `begin` to `end`.

        Args:
            source, begin, end: a span of a chunk of the transport.
            ended: the request is complete.
            windowed: the span occupies the client's flow-control windows until they are
                replenished.
        """
        raise NotImplementedError

    def unpacked(self, result: bytes | GrpcError) -> None:
        """The result of `CallHost.unpack`, while the call runs."""
        raise NotImplementedError

    def sent(self) -> None:
        """All QUEUED data are in the output."""

    def gone(self) -> None:
        """The stream was reset, or the connection lost."""
        self._connection.environment.counters.gone += 1
        self.method.counts.ended[Status.CANCELLED] += 1
        self._settle()
        self._cancel_work()

    def was_patient(self, now: float) -> bool:
        """True for a call that is reset near its deadline, as every client of gRPC does.

        The client's clock started before ours. However short the deadline, such a call has occupied
        one of the connection's streams for its time, and its work is charged: many of them gain
        nothing over answered calls. No rapid reset lives so long.
        """
        if not self.timeout_s:
            return False
        return now >= self.began + self.timeout_s * _PATIENT_PART

    def incomplete(self) -> None:
        """The client's time to complete the request is over."""
        limit = self._connection.environment.options.request_s
        reason = f"the request was not complete within grpc.request_timeout, {limit:g} s"
        self._abort(GrpcError(Status.DEADLINE_EXCEEDED, reason, limit="grpc.request_timeout"))

    def stalled(self) -> None:
        """The request hardly comes, and others wait for the buffer that is reserved for it."""
        reason = (
            "the request came too slowly while other large requests waited for grpc.buffer_bytes: "
            f"send requests of at most {self._connection.environment.options.http2.stream_window_bytes} bytes, "
            "which wait for nothing"
        )
        self._abort(GrpcError(Status.RESOURCE_EXHAUSTED, reason, limit="least rate of large requests"))

    def deadline_exceeded(self) -> None:
        """The deadline has come: end the call in a step of its connection."""
        self._connection.workload.run(self._end_at_deadline)

    # --- inside -----------------------------------------------------------------------------------

    def _end_at_deadline(self) -> None:
        if self.running:
            self._connection.environment.counters.deadlines += 1
            self._abort(GrpcError(Status.DEADLINE_EXCEEDED, "the deadline was exceeded"))

    def _added(self) -> tuple[list[Field], list[Field]]:
        if self._additions is None:
            self._additions = ([], [])
        return self._additions

    def _refuse(self, error: GrpcError) -> None:
        """Send the status of a call that has ended."""
        self._connection.refuse(self.stream_id, self._header_fields(), self._trailers(status_fields(error)))

    def _abort(self, error: GrpcError) -> None:
        """End the call with a status that is not its handler's."""
        self._abandon(error)
        self._cancel_work()

    def _abandon(self, error: GrpcError) -> None:
        """End the call with a status."""
        self.method.counts.ended[error.status] += 1
        if error.limit:
            self._connection.environment.limits.hit(error.limit, self.peer)
        try:
            self._settle()
            self._refuse(error)
        except Exception as bug:
            self._connection.broken(bug)

    def _cancel_work(self) -> None:
        """Cancel the work that the handler has returned."""
        work, self._work = self._work, None
        if work is not None:
            try:
                work.cancel()
            except Exception as bug:
                self._connection.environment.note(bug)

    def _settle(self) -> None:
        """Mark the end of the call."""
        self.running = False
        self._connection.forget(self.stream_id)

    def _compresses(self) -> bool:
        return self.compress and self.head.accepts_gzip

    def _header_fields(self) -> list[Field]:
        """The header section of the answer."""
        encoding = [(b"grpc-encoding", Encoding.GZIP.value)] if self._compresses() else []
        return [*ANSWER_HEADERS, *encoding, *(self._additions[0] if self._additions else ())]

    def _trailers(self, status: list[Field]) -> list[Field]:
        """The trailer section of the answer."""
        return [*status, *self._additions[1]] if self._additions else status


class UnaryCall(Call):
    """A call with one request and one response.

    Its handler answers once, with `answer` or `fail`, at any time.
    """

    __slots__ = ()

    def answer(self, message: Message, receipt: Receipt | None = None) -> None:
        """End the call with status OK.

        Args:
            message: the response, of the class that the method's descriptor names. It is not kept.
            receipt: told the outcome of the answer.
        """
        if type(message) is JoinedMessage and message.is_large:
            self._answer_in_pieces(message.pieces(), receipt)
            return
        try:
            body = pack_message(message.SerializeToString())
        except Exception as bug:
            # The caller may have other calls to answer.
            self.fail(bug, receipt)
            return
        self.answer_packed(body, receipt)

    def answer_packed(self, body: bytes, receipt: Receipt | None = None) -> None:
        """As `answer`, for a message in its wire format (`pack_message`, not compressed)."""
        connection = self._connection
        if not self.running:
            if receipt is not None:
                connection.receipts.undelivered(receipt)
            return
        if self._additions is not None or self.compress:
            self._answer_in_pieces([body[PREFIX_BYTES:]], receipt)
            return
        try:
            # Fast path: as below, for an answer without additions.
            self.running = False
            connection.respond(self.stream_id, _OK, body, receipt)
            counts = self.head.method.counts  # type: ignore[union-attr]  # it has one
            if self.began == connection.step_began:
                connection.answered_at_once.append(counts)
            else:
                counts.durations.observe(connection.environment.shared.monotonic() - self.began)
        except Exception as bug:
            connection.broken(bug)
            if receipt is not None:
                connection.receipts.undelivered(receipt)

    def _answer_in_pieces(self, message: Serialized, receipt: Receipt | None) -> None:
        connection, delivery = self._connection, Delivery.GONE
        if self.running:
            try:
                self._settle()
                delivery = self._send_all(message)
                now = connection.environment.shared.monotonic()
                self.method.counts.durations.observe(now - self.began)
            except Exception as bug:
                connection.broken(bug)
            connection.answered(self.stream_id, delivery, receipt)
        elif receipt is not None:
            connection.receipts.undelivered(receipt)

    def _send_all(self, message: Serialized) -> Delivery:
        """Send the whole answer; returns the delivery of its end."""
        connection, core, stream_id = self._connection, self._connection.core, self.stream_id
        pieces = pack_pieces(message, compressed=self._compresses())
        if core.send_headers(stream_id, self._header_fields()) is Delivery.GONE:
            return Delivery.GONE
        size = sum(map(len, pieces))
        if size > core.send_capacity:
            connection.make_room(size)
        for piece in pieces:
            if core.send_data(stream_id, piece) is Delivery.GONE:
                return Delivery.GONE
        return core.send_trailers(stream_id, self._trailers(OK_TRAILERS))

    def received_whole(self, source: bytes, begin: int, end: int) -> None:
        """As `received`, for a request that came with its head.

        Fast path: one message, not compressed, that needs no check.
        """
        size, method = end - begin - PREFIX_BYTES, self.head.method
        if size >= 0:
            flag, length = unpack_prefix(source, begin)
            if not flag and length == size < method.checked_bytes_min:  # type: ignore[union-attr]  # it has one
                self._run_checked(method, source[begin + PREFIX_BYTES : end])  # type: ignore[arg-type]
                return
        self.received(source, begin, end, ended=True, windowed=False)

    def received(self, source: bytes, begin: int, end: int, *, ended: bool, windowed: bool) -> None:
        """See `Call.received`."""
        connection = self._connection
        reader = self._partial
        if reader is None:
            most = connection.environment.options.message_bytes_max
            reader = self._partial = MessageReader(self.head.encoding, most)
        reader.feed(source, begin, end)
        try:
            connection.incomplete.hold(self.stream_id, reader.size)
            if not ended:
                reader.check_only()
                if windowed:
                    connection.incomplete.receive_part(self.stream_id, reader.expected, end - begin)
                return
            if windowed:
                connection.replenish(self.stream_id, end - begin)
            message = reader.take_only()
        except GrpcError as error:
            self._abort(error)
            return
        self.request_compressed = reader.compressed
        if isinstance(message, Unpacker):
            # It is held until it is decompressed.
            connection.unpack(self, message)
        else:
            connection.incomplete.hold(self.stream_id, 0)
            self._run(message)

    def unpacked(self, result: bytes | GrpcError) -> None:
        """See `Call.unpacked`."""
        if isinstance(result, GrpcError):
            self._abort(result)
        else:
            self._connection.incomplete.hold(self.stream_id, 0)
            self._run(result)

    def _run(self, body: bytes | bytearray) -> None:
        """Check the request, and run the handler."""
        method, memory = self.method, 0
        try:
            if len(body) >= method.checked_bytes_min:
                memory = method.check(body)
        except DecodeError:
            self._abort(NOT_A_MESSAGE)
        except GrpcError as error:
            self._abort(error)
        except Exception as bug:
            self.fail(bug)
        else:
            if memory > SMALL_REQUEST_BYTES and method.is_weighed:
                self._work = self._connection.spawn(self._answer_in_turn(body, memory), method.name)
            else:
                self._run_checked(method, body)

    def _run_checked(self, method: Method, body: bytes | bytearray) -> None:
        """Run the handler."""
        try:
            request = method.parse(body)
        except DecodeError:
            self._abort(NOT_A_MESSAGE)
            return
        except GrpcError as error:
            self._abort(error)
            return
        except Exception as bug:
            self.fail(bug)
            return
        if method.unary is None:
            self._work = self._connection.spawn(self._answer_with(request), method.name)
            return
        # As `_begin`, which would take a fiftieth of a short call.
        try:
            work = method.unary(request, self)
        except Exception as error:
            self.fail(error)
        else:
            self._work = work if self.running else None

    def _begin(self, function: UnaryFunction, request: Message) -> None:
        """Run a plain function."""
        try:
            work = function(request, self)
        except Exception as error:
            self.fail(error)
        else:
            # Work that goes on after the answer is not cancelled.
            self._work = work if self.running else None

    def request_memory(self) -> Callable[[], None]:
        """Keep the memory of the request counted beyond the handler, which is a plain function;
        returns the function to call once nothing of the request is kept.
        """
        memory = self._uncounted()
        if not memory:
            return _nothing
        semaphore = self._connection.environment.parsed_semaphores[self.method.name]
        return partial(semaphore.release, client_address(self.peer), memory)

    async def _answer_in_turn(self, body: bytes | bytearray, memory: int) -> None:
        """Parse a request once there is memory for it, and answer it.

        Until then it is held as an incomplete one: its objects take many times the bytes of its
        elements, for as long as it waits for others.
        """
        connection, method = self._connection, self.method
        semaphore = connection.environment.parsed_semaphores[method.name]
        client = client_address(self.peer)
        try:
            if not semaphore.available(client, memory):
                connection.incomplete.hold(self.stream_id, len(body))
            await semaphore.acquire(client, memory)
        except GrpcError as error:
            self.fail(error)
            return
        try:
            connection.incomplete.hold(self.stream_id, 0)
            request = method.parse(body)
            # The parser may keep views of it.
            del body
            if method.unary is None:
                await self._answer_with(request)
                return
            # Its work is another one from here on.
            self._work, self._request_memory = None, memory
            self._begin(method.unary, request)
            memory = self._uncounted()
        except DecodeError:
            self.fail(NOT_A_MESSAGE)
        except Exception as bug:
            self.fail(bug)
        finally:
            if memory:
                semaphore.release(client, memory)

    def _uncounted(self) -> int:
        """The memory of a request that its handler has not asked for."""
        memory, self._request_memory = self._request_memory, None
        return memory or 0

    async def _answer_with(self, request: Message) -> None:
        """Run a coroutine.

        The coroutine is made here: made earlier, nobody would await it if the task is cancelled
        before its first step.
        """
        assert self.method.coroutine is not None
        try:
            answer = await self.method.coroutine(request, self)
        except Exception as error:
            self.fail(error)
        else:
            self.answer(answer)


def _nothing() -> None:
    """The request was small."""


def answer_all(calls: Sequence[UnaryCall], bodies: Iterable[bytes]) -> None:
    """End calls of one method, of any connections, with status OK, each as
    `UnaryCall.answer_packed` does.
    """
    apart = 0
    # Consecutive calls of one connection are answered together.
    connection = calls[0]._connection
    stream_ids: list[int] = []
    answers: list[bytes] = []
    for call, body in zip(calls, bodies, strict=True):
        if not call.running or call._additions is not None or call.compress:
            apart += 1
            call.answer_packed(body)
            continue
        call.running = False
        if call._connection is not connection:
            _respond_all(connection, stream_ids, answers)
            connection, stream_ids, answers = call._connection, [], []
        stream_ids.append(call.stream_id)
        answers.append(body)
    _respond_all(connection, stream_ids, answers)
    if len(calls) > apart:
        _count(calls, len(calls) - apart)


def _respond_all(connection: CallHost, stream_ids: list[int], bodies: list[bytes]) -> None:
    try:
        if stream_ids:
            connection.respond_all(stream_ids, _OK, bodies)
    except Exception as bug:
        connection.broken(bug)


def _count(calls: Sequence[UnaryCall], answered: int) -> None:
    """Count answered calls of one method. One of them, which the clock chooses, is timed for
    all.
    """
    now = calls[0]._connection.environment.shared.monotonic()
    timed = calls[int(now * 1e6) % len(calls)]
    timed.method.counts.durations.observe(now - timed.began, answered)
