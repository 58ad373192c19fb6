"""The exchanges of one connection.

Requests of the HTTP/1.1 core go to the handlers of their routes, and answers into the core, which
puts them in the order of the requests. The connection's link decides when bytes are received and
written, its workload when handlers run, and its receipts report the outcome of answers.

A client that closes its side is gone: its exchanges end, and what was meant for them goes to
others.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from pixy.aio.futures import resolve
from pixy.http1 import CLOSE, Http1Connection, HttpRefusal, HttpRequest, RequestHead, chunk
from pixy.http1.response import LAST_CHUNK
from pixy.serving import End, Link, Receipt, RequestCounts, Steps
from pixy.web.answers import Answer, AnswerHead
from pixy.web.environment import WebEnvironment
from pixy.web.exchange import Exchange
from pixy.web.route_counts import GONE
from pixy.web.router import Match, Revocable, Route
from pixy.web.style import PLAIN

_DROPPED_PER_SLICE = 64
_AHEAD_BYTES = 16 << 10
"""Input behind requests that are not answered, beyond which nothing is read."""
_HELD_BYTES_MIN = 4096
"""Smaller bodies are not counted."""
_KEEP_ALIVE = b"Connection: keep-alive\r\n"


class WebConnection:
    """HTTP/1.1 on one connection, see `ConnectionProtocol` and `ExchangeHost`.

    Args:
        environment: shared by connections.
        link: of the connection.
        accepted_at: seconds on the server's clock.

    Attributes:
        core: HTTP/1.1.
        environment: see above.
    """

    __slots__ = (
        "_begun",
        "_calls",
        "_client",
        "_dropping",
        "_exchanges",
        "_held_bytes",
        "_link",
        "_monotonic",
        "_open_calls",
        "_receipts",
        "_stopped",
        "_turns",
        "_workload",
        "core",
        "environment",
    )

    def __init__(self, environment: WebEnvironment, link: Link, accepted_at: float) -> None:
        self.environment = environment
        # Invariant: both count each of `_exchanges`.
        self._open_calls, self._client = environment.shared.open_calls, link.client
        self.core = Http1Connection(
            environment.options.http1, environment.heads, environment.body_bytes_max, accepted_at
        )
        self._link = link
        self._monotonic = environment.shared.monotonic
        self._receipts = link.receipts
        self._workload = link.workload
        # Unanswered ones by number, in the order of arrival.
        self._exchanges: dict[int, Exchange] = {}
        # Answers in pieces that wait for their turn, by number.
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._held_bytes = 0
        # Requests wait in the core, for answers to earlier ones.
        self._stopped = self._dropping = False
        self._calls = 0

    # --- for the link -----------------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """See `ConnectionProtocol`."""
        return self._held_bytes

    @property
    def counts(self) -> RequestCounts:
        """See `ConnectionProtocol`."""
        return RequestCounts(
            calls=self._calls,
            running=len(self._exchanges),
            request_bytes=self.core.request_bytes,
            queued_bytes=self.core.queued_bytes,
        )

    def receive(self, chunk: bytes, now: float, work: int) -> None:
        """See `ConnectionProtocol`."""
        core, workload = self.core, self._workload
        core.receive(chunk, work)
        while (event := core.next_event(now)) is not None:
            if isinstance(event, HttpRequest):
                self._on_request(event)
            else:
                self._on_refusal(event)
            # Most chunks have one request.
            if not core.more or workload.step_over:
                break
        if core.more and (core.held or core.full):
            self._stopped = True
            # Until then the client's end is noticed.
            if core.request_bytes >= _AHEAD_BYTES:
                self._link.pause_input()

    def tick(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        # Bytes that the server has not read are no fault of the client.
        if not self._workload.held_back and self._link.transport.writable:
            event = self.core.tick(now)
            if event is not None:
                self._on_refusal(event)

    def announce_drain(self) -> None:
        """See `ConnectionProtocol`."""
        self.core.announce_drain()

    def drain(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        self.core.drain()

    def terminate(self, end: End) -> None:
        """See `ConnectionProtocol`."""
        self.core.terminate()
        if not self._dropping:
            self._dropping = True
            self._workload.run(self._drop_some)

    # --- answers ----------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """See `ExchangeHost`."""
        return self._link.peer

    def respond(self, exchange: Exchange, head: AnswerHead, body: bytes, receipt: Receipt | None) -> None:
        """See `ExchangeHost`."""
        self._forget(exchange)
        queued = self.core.queued_bytes
        if queued and queued + len(body) > self.environment.options.output_bytes:
            # It cannot be left out: later answers would be taken for it.
            if receipt is not None:
                self._receipts.undelivered(receipt)
            self.environment.shared.limits.hit("grpc.output_buffer_bytes", self.peer)
            exchange.route.counts.count(GONE, exchange.began, self._monotonic)
            self._link.evict()
            return
        exchange.route.counts.count(head.status, exchange.began, self._monotonic)
        self._respond(exchange.number, exchange.head, head, body, receipt)

    async def begin(self, exchange: Exchange, head: AnswerHead) -> None:
        """See `ExchangeHost`."""
        core, number = self.core, exchange.number
        if core.line != number:
            turn = self._turns[number] = asyncio.get_running_loop().create_future()
            await turn
        exchange.route.counts.count(head.status, exchange.began, self._monotonic)
        is_1_0 = exchange.head.is_1_0
        if is_1_0:
            core.close_after(number)
        coding = b"" if is_1_0 else b"Transfer-Encoding: chunked\r\n"
        connection = self._connection_field(number, exchange.head)
        core.send(number, b"".join((head.encoded, self.environment.date.line(), connection, coding, b"\r\n")))
        self._link.touch()

    async def send(self, exchange: Exchange, piece: bytes, receipt: Receipt | None) -> None:
        """See `ExchangeHost`."""
        self.core.send(exchange.number, piece if exchange.head.is_1_0 else chunk(piece))
        if receipt is not None:
            self._receipts.add(receipt)
        self._link.touch()
        await self._link.wait_sendable(len(piece))
        if self._workload.step_over:
            await asyncio.sleep(0)

    def end(self, exchange: Exchange, *, whole: bool) -> None:
        """See `ExchangeHost`."""
        self._forget(exchange)
        number = exchange.number
        if not whole:
            self.core.close_after(number)
        self._answered(
            number, self.core.finish(number, b"" if exchange.head.is_1_0 or not whole else LAST_CHUNK)
        )

    def undelivered(self, receipt: Receipt) -> None:
        """See `ExchangeHost`."""
        self._receipts.undelivered(receipt)

    def broken(self, bug: Exception) -> None:
        """See `ExchangeHost`."""
        self._link.broken(bug)

    # --- requests ---------------------------------------------------------------------------------

    def _on_request(self, request: HttpRequest) -> None:
        number, head, body = request
        match: Match | Answer = head.route or self.environment.match(head)
        if isinstance(match, Answer):
            self.environment.shared.counters.rejected += 1
            self._respond(number, head, *match, None)
            return
        open_calls, client = self._open_calls, self._client
        if client.open >= open_calls.share or open_calls.open >= open_calls.limit:
            self._refuse_beyond(number, head, match.route)
            return
        open_calls.open += 1
        client.open += 1
        self._calls += 1
        exchange = self._exchanges[number] = Exchange(self, number, head, match, body, self._workload.now)
        if len(body) >= _HELD_BYTES_MIN:
            self._held_bytes += len(body)
            exchange.held_bytes = len(body)
        handler: Callable[[Exchange], Any] = exchange.route.handler
        if exchange.is_coroutine:
            # One at a time, or many pipelined requests would each hold a large answer that the
            # client does not read.
            self.core.held = True
            handler = self._spawn
        try:
            work: Revocable | None = handler(exchange)
        except Exception as error:
            exchange.fail(error)
        else:
            # Work that goes on after the answer is not cancelled.
            exchange.work = work if exchange.running else None

    def _on_refusal(self, event: HttpRefusal) -> None:
        """Answer the last request of a connection, which was not taken."""
        shared = self.environment.shared
        shared.counters.rejected += 1
        shared.counters.faulty += event.head is None
        match = None if event.head is None else self.environment.match(event.head)
        if isinstance(match, Answer):
            answer = match
        else:
            style = PLAIN if match is None else match.route.style
            answer = style.render(event.status, event.text)
        self._respond(event.number, event.head, *answer, None)

    def _refuse_beyond(self, number: int, head: RequestHead, route: Route) -> None:
        """Refuse a request beyond the server's bound on open calls."""
        excess, shared = self._open_calls.excess(), self.environment.shared
        shared.counters.rejected += 1
        shared.limits.hit(excess.limit, self.peer)
        self._respond(number, head, *route.style.render(429, excess.text), None)

    def _spawn(self, exchange: Exchange) -> "asyncio.Task[None]":
        work = Steps(_answer_with(exchange), self._workload)
        return self.environment.shared.tasks.spawn(work, exchange.route.pattern)

    # --- inside -----------------------------------------------------------------------------------

    def _forget(self, exchange: Exchange) -> None:
        del self._exchanges[exchange.number]
        if exchange.is_coroutine:
            self.core.held = False
        self._open_calls.open -= 1
        self._client.open -= 1
        if self._held_bytes:
            self._held_bytes -= exchange.held_bytes

    def _respond(
        self,
        number: int,
        request: RequestHead | None,
        head: AnswerHead,
        body: bytes,
        receipt: Receipt | None,
    ) -> None:
        core = self.core
        connection, content = b"", body
        if core.ending or request is None or request.is_1_0:
            connection = self._connection_field(number, request)
        if request is not None and request.method == "HEAD":
            content = b""
        date = self.environment.date.line()
        encoded = b"%b%b%bContent-Length: %d\r\n\r\n%b" % (head.encoded, date, connection, len(body), content)
        count = core.respond(number, encoded)
        if receipt is not None:
            if count:
                self._receipts.add(receipt)
            else:
                self._receipts.queue(number, receipt)
        self._answered(number, count)

    def _answered(self, number: int, count: int) -> None:
        """As many answers are in the output, this one first."""
        link = self._link
        if not link.touched:
            link.touch()
        if count > 1:
            for later in range(number + 1, number + count):
                self._receipts.sent(later)
        if self._turns and (turn := self._turns.pop(self.core.line, None)) is not None:
            resolve(turn, None)
        if self._stopped and not self.core.full and not self.core.held:
            self._stopped = False
            link.resume_input()

    def _connection_field(self, number: int, head: RequestHead | None) -> bytes:
        if self.core.closes_after(number):
            return CLOSE
        return _KEEP_ALIVE if head is not None and head.is_1_0 else b""

    def _drop_some(self) -> None:
        """Tell a slice of all exchanges and receipts that the client is gone."""
        try:
            for _ in range(_DROPPED_PER_SLICE):
                if self._exchanges:
                    # The last one: a dictionary is slow to find its first after many removals.
                    exchange = next(reversed(self._exchanges.values()))
                    self._forget(exchange)
                    if not exchange.begun:
                        exchange.route.counts.count(GONE, exchange.began, self._monotonic)
                    exchange.gone()
                elif not self._receipts.drop_one():
                    break
        finally:
            if self._exchanges or self._receipts:
                self._workload.queue(self._drop_some)
            else:
                self._dropping = False
                self._link.dropped()


async def _answer_with(exchange: Exchange) -> None:
    """Run a coroutine.

    The coroutine is made here: made earlier, nobody would await it if the task is cancelled before
    its first step.
    """
    handler: Callable[[Exchange], Any] = exchange.route.handler
    try:
        answer: Answer | None = await handler(exchange)
    except Exception as error:
        exchange.fail(error)
    else:
        if answer is not None:
            exchange.answer(*answer)
        else:
            exchange.end()
