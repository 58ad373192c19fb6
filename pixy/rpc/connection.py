"""The calls of one connection.

Events of the HTTP/2 core go to their calls, and answers of calls into the core. The connection's
link decides when bytes are received and written, its workload when handlers run, and its receipts
report the outcome of answers. `incomplete_requests` bounds the memory that requests hold, and
`refusals` answers those that begin no call.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

import structlog

from pixy.aio.byte_semaphore import ByteSemaphore
from pixy.http2 import (
    HTTP1_REQUEST,
    NO_PREFACE,
    ConnectionTerminated,
    DataReceived,
    DataSent,
    Delivery,
    ErrorCode,
    Event,
    Field,
    Http2Connection,
    RequestReceived,
    ResponseTemplate,
    StreamReset,
    TrailersReceived,
)
from pixy.rpc.call import Call, UnaryCall
from pixy.rpc.call_environment import CallEnvironment
from pixy.rpc.call_host import Unpackable
from pixy.rpc.headers import TIMEOUT, CallHeaders, read_call_headers, read_timeout, read_varying
from pixy.rpc.incomplete_requests import IncompleteRequests
from pixy.rpc.methods import MethodCounts, count_together
from pixy.rpc.protocol_limits import ENDS, limit_of
from pixy.rpc.refusals import Refusals
from pixy.rpc.status import GrpcError
from pixy.rpc.stream import StreamCall
from pixy.rpc.unpacking import Unpacker
from pixy.serving import End, Link, Receipt, RequestCounts, Steps

log = structlog.get_logger(__name__)

_DROPPED_PER_SLICE = 64
_STREAM_BYTES = 1024
"""Memory of a stream without a call: it was not begun, or its answer waits for the client."""
_LIMIT_CODES = (ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.SETTINGS_TIMEOUT)


class GrpcConnection:
    """gRPC on one connection, see `ConnectionProtocol` and `CallHost`.

    Args:
        environment: shared by all connections.
        link: of the connection.
        accepted_at: seconds on the server's clock.

    Attributes:
        core: HTTP/2.
        receipts: of answers that are under way.
        incomplete: requests that are not complete.
        link: its transport, and its life.
        workload: its share of the event loop.
        message_bytes_max: largest message of a request.
        calls, resets_received: see `ConnectionCounters`.
        step_began, answered_at_once: see `CallHost`.
    """

    __slots__ = (
        "_calls",
        "_client",
        "_drain",
        "_draining",
        "_dropping",
        "_held",
        "_open_calls",
        "_output_semaphore",
        "_refusals",
        "_since",
        "_unpacked_bytes",
        "_watched",
        "answered_at_once",
        "calls",
        "core",
        "environment",
        "incomplete",
        "link",
        "message_bytes_max",
        "receipts",
        "resets_received",
        "step_began",
        "workload",
    )

    def __init__(self, environment: CallEnvironment, link: Link, accepted_at: float) -> None:
        self.environment = environment
        # Invariant: both count each of `_calls`.
        self._open_calls, self._client = environment.shared.open_calls, link.client
        self.core = Http2Connection(environment.options.http2, accepted_at)
        self.link = link
        self.receipts = link.receipts
        self.workload = link.workload
        # Running calls by stream, in the order of arrival.
        self._calls: dict[int, Call] = {}
        self.message_bytes_max = environment.options.message_bytes_max
        # `Deadlines` will ask for new calls.
        self._watched = False
        # Set when a drain begins, for handlers that wait for it; None until there is one.
        self._drain: asyncio.Event | None = None
        self._draining = False
        # All calls are being told of the end.
        self._dropping = False
        # Bytes of the message that is being decompressed, one at a time.
        self._unpacked_bytes = 0
        self.incomplete = IncompleteRequests(link, self.core, environment)
        self._held = self.incomplete.held
        self._since = self.incomplete.since
        self._refusals = Refusals(link, self.core, environment, self.incomplete)
        self.calls = self.resets_received = 0
        self.step_began: float | None = None
        self.answered_at_once: list[MethodCounts] = []
        # Bytes of large answers of streaming calls; None until there is one.
        self._output_semaphore: ByteSemaphore | None = None

    # --- for the link -----------------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """See `ConnectionProtocol`."""
        without_call = max(self.core.running - len(self._calls), 0)
        return self.incomplete.held_bytes + self._unpacked_bytes + without_call * _STREAM_BYTES

    @property
    def counts(self) -> RequestCounts:
        """See `ConnectionProtocol`."""
        return RequestCounts(
            calls=self.calls,
            running=self.core.running,
            resets_received=self.resets_received,
            resets_sent=self.core.resets,
            request_bytes=self.incomplete.held_bytes,
            queued_bytes=self.core.queued_bytes,
        )

    def receive(self, chunk: bytes, now: float, work: int) -> None:
        """See `ConnectionProtocol`."""
        self._act(self.core.receive(chunk, now, work))

    def announce_drain(self) -> None:
        """See `ConnectionProtocol`."""
        self.core.announce_drain()
        self._drain_began()

    def drain(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        self.core.begin_drain(now)
        self._drain_began()

    def terminate(self, end: End) -> None:
        """See `ConnectionProtocol`."""
        if end is End.NOT_AGREED:
            self.environment.strangers.hit("TLS without the protocol h2 of ALPN", self.link.peer)
        try:
            self.core.terminate(*ENDS[end])
        finally:
            self._drop()

    # --- answers ----------------------------------------------------------------------------------

    def forget(self, stream_id: int) -> None:
        """See `CallHost`."""
        del self._calls[stream_id]
        self._open_calls.open -= 1
        self._client.open -= 1
        if stream_id in self._held:
            self.incomplete.release(stream_id)
        if self._since:
            self._since.pop(stream_id, None)

    def respond(
        self, stream_id: int, template: ResponseTemplate, body: bytes, receipt: Receipt | None
    ) -> None:
        """See `CallHost`."""
        del self._calls[stream_id]
        self._open_calls.open -= 1
        self._client.open -= 1
        if self._held and stream_id in self._held:
            self.incomplete.release(stream_id)
        if not self.link.touched:
            self.link.touch()
        if self.core.maybe_respond(stream_id, template, body):
            if receipt is not None:
                self.receipts.add(receipt)
            return
        self._respond_slowly(stream_id, template, body, receipt)

    def respond_all(
        self, stream_ids: Sequence[int], template: ResponseTemplate, bodies: Sequence[bytes]
    ) -> None:
        """See `CallHost`."""
        for stream_id in stream_ids:
            del self._calls[stream_id]
        self._open_calls.open -= len(stream_ids)
        self._client.open -= len(stream_ids)
        if self._held:
            for stream_id in self._held.keys() & stream_ids:
                self.incomplete.release(stream_id)
        if not self.link.touched:
            self.link.touch()
        at = self.core.maybe_respond_all(stream_ids, template, bodies)
        for stream_id, body in zip(stream_ids[at:], bodies[at:], strict=True):
            self._respond_slowly(stream_id, template, body, None)

    def _respond_slowly(
        self, stream_id: int, template: ResponseTemplate, body: bytes, receipt: Receipt | None
    ) -> None:
        if len(body) > self.core.send_capacity:
            self.make_room(len(body))
        self.answered(stream_id, self.core.respond(stream_id, template, body), receipt)

    def answered(self, stream_id: int, delivery: Delivery, receipt: Receipt | None) -> None:
        """See `CallHost`."""
        self.link.touch()
        if receipt is not None:
            self.take_receipt(stream_id, delivery, receipt)

    def take_receipt(self, stream_id: int, delivery: Delivery, receipt: Receipt) -> None:
        """See `CallHost`."""
        if delivery is Delivery.SENT:
            self.receipts.add(receipt)
        elif delivery is Delivery.QUEUED:
            self.receipts.queue(stream_id, receipt)
        else:
            self.receipts.undelivered(receipt)

    def refuse(self, stream_id: int, headers: list[Field], trailers: list[Field]) -> None:
        """See `CallHost`."""
        self.core.send_trailers(stream_id, [*headers, *trailers])
        self.link.touch()

    def make_room(self, size: int) -> None:
        """See `CallHost`."""
        while self.core.send_capacity < size and self.link.maybe_write():
            pass
        self.link.note_held()

    @property
    def output_semaphore(self) -> ByteSemaphore:
        """See `CallHost`."""
        if self._output_semaphore is None:
            self._output_semaphore = ByteSemaphore(self.environment.options.http2.output_bytes // 2)
        return self._output_semaphore

    # --- handlers ---------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """See `CallHost`."""
        return self.environment.tasks.spawn(Steps(work, self.workload), name)

    async def pause(self) -> None:
        """See `CallHost`."""
        if self.workload.step_over:
            await asyncio.sleep(0)

    def unpack(self, call: Unpackable, packed: Unpacker) -> None:
        """See `CallHost`."""

        def step() -> bool:
            self._unpacked_bytes = 0
            if not call.running:
                return True
            try:
                if not packed.step():
                    self._unpacked_bytes = packed.size
                    self.link.note_held()
                    return False
            except GrpcError as error:
                call.unpacked(error)
            else:
                call.unpacked(packed.message)
            return True

        self.workload.do(step)

    # --- requests ---------------------------------------------------------------------------------

    def replenish(self, stream_id: int, size: int) -> None:
        """See `CallHost`."""
        self.core.replenish(stream_id, size)
        self.link.touch()

    # --- time -------------------------------------------------------------------------------------

    def take_new_calls(self) -> list[Call]:
        """See `HasCalls`.

        Calls begin in the order of `_calls`, so all before a timed one are timed, too.
        """
        self._watched = False
        new = []
        for call in reversed(self._calls.values()):
            if call.timed:
                break
            call.timed = True
            if call.timeout_s is not None:
                new.append(call)
        return new

    def tick(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        if self.link.transport.writable:
            self._act(self.core.tick(now))
        self._log_limits()
        if self._since and self.environment.options.request_s:
            self.workload.run(partial(self._end_incomplete, now - self.environment.options.request_s))
        # Bytes that the server has not read are no fault of the client.
        if not self.workload.held_back and (stalled := self.incomplete.take_stalled()):
            self.workload.run(partial(self._end_stalled, stalled))

    def _log_limits(self) -> None:
        """Log the limits that streams have met since the last time."""
        for reason, times in self.core.take_limits_hit().items():
            self.environment.limits.hit(limit_of(reason), self.link.peer, times)

    def _end_incomplete(self, since: float) -> None:
        """End a slice of the calls that have been incomplete since then or earlier."""
        for _ in range(_DROPPED_PER_SLICE):
            stream_id = self.incomplete.take_expired(since)
            if stream_id is None:
                return
            call = self._calls.get(stream_id)
            if call is None:
                self._refusals.complete(stream_id)
            elif not self.incomplete.maybe_postpone(stream_id):
                call.incomplete()
        self.workload.queue(partial(self._end_incomplete, since))

    def _end_stalled(self, stream_ids: Sequence[int]) -> None:
        for stream_id in stream_ids:
            if (call := self._calls.get(stream_id)) is not None:
                call.stalled()

    # --- drain ------------------------------------------------------------------------------------

    @property
    def drain_event(self) -> asyncio.Event:
        """See `CallHost`."""
        if self._drain is None:
            self._drain = asyncio.Event()
            if self._draining or self.environment.shared.draining:
                self._drain.set()
        return self._drain

    def _drain_began(self) -> None:
        self._draining = True
        if self._drain is not None:
            self._drain.set()

    # --- the end ----------------------------------------------------------------------------------

    def broken(self, bug: Exception) -> None:
        """See `CallHost`."""
        self.link.broken(bug)

    def _drop(self) -> None:
        """Tell all calls that the client is gone, in slices."""
        if not self._dropping:
            self._dropping = True
            self._log_limits()
            self.workload.run(self._drop_some)

    def _drop_some(self) -> None:
        """Tell a slice of all calls and receipts that the client is gone."""
        try:
            for _ in range(_DROPPED_PER_SLICE):
                if self._calls:
                    # The last one: a dictionary is slow to find its first after many removals.
                    next(reversed(self._calls.values())).gone()
                elif not self.receipts.drop_one():
                    break
        finally:
            if self._calls or self.receipts:
                self.workload.queue(self._drop_some)
            else:
                self._dropping = False
                self.link.dropped()

    # --- events -----------------------------------------------------------------------------------

    def _act(self, events: Sequence[Event]) -> None:
        """Act on events of the core."""
        left = iter(events)
        if self._act_on(left):
            return
        if type(events[-1]) is ConnectionTerminated:
            # Earlier events are of no use. It may have been the event that ended the slice.
            if next(left, None) is not None:
                self._on_terminated(events[-1])
        else:
            self.workload.do_later(partial(self._act_on, left))

    def _act_on(self, events: Iterator[Event]) -> bool:
        """Act on events until the slice is over; returns True after the last.

        Only `turn_bytes` bounds plain unary calls.
        """
        workload = self.workload
        now = workload.now
        self.step_began = now
        try:
            for event in events:
                if type(event) is RequestReceived:
                    if self._on_request(event, now) and workload.step_over:
                        return False
                else:
                    _HANDLERS[type(event)](self, event)
                    if workload.step_over:
                        return False
            return True
        finally:
            self.step_began = None
            if self.answered_at_once:
                count_together(self.answered_at_once, self.environment.shared.monotonic() - now)
                self.answered_at_once.clear()

    def _on_request(self, event: RequestReceived, now: float) -> bool:
        """Begin a call; returns True if its handler is a task, which is expensive."""
        stream_id, headers, buffer, begin, end, ended, varying = event
        head = headers.memo
        if not isinstance(head, CallHeaders):
            head = headers.memo = read_call_headers(headers, self.environment.methods)
        timeout_s = head.timeout_s
        if varying is not None:
            timeout_s = read_timeout(varying[1]) if varying[0] == TIMEOUT else None
            if timeout_s is None:
                head = read_varying(headers, varying, self.environment.methods)
                timeout_s = head.timeout_s
        method = head.method or self._refusals.maybe_admit(stream_id, head, ended=ended)
        if method is None:
            return False
        open_calls, client = self._open_calls, self._client
        if client.open >= open_calls.share or open_calls.open >= open_calls.limit:
            self._refusals.refuse_beyond(stream_id)
            return False
        open_calls.open += 1
        client.open += 1
        self.calls += 1
        if timeout_s is not None and not self._watched:
            self._watched = True
            self.environment.deadlines.watch(self)
        if not ended and not method.client_streams:
            self._since[stream_id] = now
        if method.stream is None:
            call = self._calls[stream_id] = UnaryCall(self, stream_id, head, timeout_s, now)
            if ended:
                call.received_whole(buffer, begin, end)
            elif end:
                call.received(buffer, begin, end, ended=False, windowed=False)
            return method.unary is None
        streaming = self._calls[stream_id] = StreamCall(self, stream_id, head, timeout_s, now)
        streaming.start()
        if end or ended:
            streaming.received(buffer, begin, end, ended=ended, windowed=False)
        return True

    def _on_data(self, event: DataReceived) -> None:
        stream_id, buffer, begin, end, ended = event
        if ended and self._since:
            self._since.pop(stream_id, None)
        call = self._calls.get(stream_id)
        if call is not None:
            call.received(buffer, begin, end, ended=ended, windowed=True)
            return
        # The call was refused, or answered before its request was complete.
        self.core.replenish(stream_id, end - begin)
        if ended:
            self._refusals.complete(stream_id)

    def _on_trailers(self, event: TrailersReceived) -> None:
        self.incomplete.complete(event.stream_id)
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.received(b"", 0, 0, ended=True, windowed=False)
        else:
            self._refusals.complete(event.stream_id)

    def _on_sent(self, event: DataSent) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.sent()
        self.receipts.sent(event.stream_id)

    def _on_reset(self, event: StreamReset) -> None:
        if event.by_client:
            self.resets_received += 1
        call = self._calls.get(event.stream_id)
        if call is not None:
            if event.by_client and call.was_patient(self.workload.now):
                self.core.refund_reset()
            call.gone()
        else:
            self._refusals.reset(event.stream_id)
        self.receipts.reset(event.stream_id)

    def _on_terminated(self, event: ConnectionTerminated) -> None:
        if event.code is not ErrorCode.NO_ERROR:
            self.environment.counters.faulty += 1
            log.debug("connection ended", peer=self.link.peer, code=event.code.name, reason=event.reason)
        if event.code in _LIMIT_CODES:
            self.environment.limits.hit(limit_of(event.reason), self.link.peer)
        elif event.reason in (HTTP1_REQUEST, NO_PREFACE):
            self.environment.strangers.hit(event.reason, self.link.peer)
        self._drop()


_HANDLERS: dict[type, Callable[[GrpcConnection, Any], None]] = {
    DataReceived: GrpcConnection._on_data,
    TrailersReceived: GrpcConnection._on_trailers,
    DataSent: GrpcConnection._on_sent,
    StreamReset: GrpcConnection._on_reset,
    ConnectionTerminated: GrpcConnection._on_terminated,
}
