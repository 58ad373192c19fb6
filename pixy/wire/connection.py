"""Requests of one connection, see `ConnectionProtocol`.

They run beside each other, and are answered in order. A client that sends what is no request, or a
request to an API that is not served, is cut off, as Kafka does. So is one that asks for more than
a login before it is logged in, where clients have to; until then its requests are served one at a
time.
"""

import asyncio
from typing import Any

import structlog

from pixy.aio.futures import resolve
from pixy.kafka_messages import KafkaHead, MalformedKafkaMessage, parse_head
from pixy.kafka_messages.generated.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from pixy.serving import End, Link, RequestCounts, Steps
from pixy.wire.apis import API_VERSIONS, SASL_AUTHENTICATE, ServedApi
from pixy.wire.core import RefusedFrame, WireCore
from pixy.wire.environment import WireEnvironment
from pixy.wire.exchange import WireExchange

log = structlog.get_logger(__name__)

_DROPPED_PER_SLICE = 64
_HELD_BYTES_MIN = 4096
"""Smaller requests are not counted."""
_TOKEN_HEAD = KafkaHead(SASL_AUTHENTICATE, 0, 0, "", 0)
"""Of a token of SASL without a head."""


class WireConnection:
    """One connection.

    Args:
        environment: shared by connections.
        link: of the connection.
        accepted_at: seconds on the server's clock.

    Attributes:
        core: frames.
        session, user: see `WireExchange`.
    """

    __slots__ = (
        "_accepted_at",
        "_calls",
        "_client",
        "_dropping",
        "_environment",
        "_exchanges",
        "_heard_at",
        "_held",
        "_held_bytes",
        "_link",
        "_open_calls",
        "_turns",
        "_workload",
        "core",
        "session",
        "user",
    )

    def __init__(self, environment: WireEnvironment, link: Link, accepted_at: float) -> None:
        self._environment = environment
        # Invariant: both count each of `_exchanges`.
        self._open_calls, self._client = environment.shared.open_calls, link.client
        self.user: str | None = None
        self.core = WireCore(self._frame_bytes_max)
        self._link = link
        self._workload = link.workload
        # Unanswered ones by number, in the order of arrival; those that wait for their turn.
        self._exchanges: dict[int, WireExchange] = {}
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._held_bytes = self._calls = 0
        # Requests wait for answers to earlier ones, or for the client to read them.
        self._held = self._dropping = False
        # Time of the last whole request, or of the first byte of the next one.
        self._heard_at = self._accepted_at = accepted_at
        self.session: dict[str, Any] = {}

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
            request_bytes=self.core.input_bytes + self._held_bytes,
            queued_bytes=self.core.queued_bytes,
        )

    def receive(self, chunk: bytes, now: float, work: int) -> None:
        """See `ConnectionProtocol`."""
        core = self.core
        if chunk and not core.input_bytes:
            self._heard_at = now
        core.receive(chunk)
        try:
            while not self._is_full():
                frame = core.next_frame()
                if frame is None:
                    break
                self._heard_at = now
                self._on_frame(frame)
                work -= len(frame)
                if not core.pending or work <= 0 or self._workload.step_over:
                    break
        except (RefusedFrame, MalformedKafkaMessage) as refused:
            self.refuse(str(refused))

    def tick(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        options = self._environment.options
        if self._held or self._exchanges:
            self._heard_at = now
            self._maybe_go_on()
            return
        if not self._is_logged_in and options.first_s and now - self._accepted_at >= options.first_s:
            if self._calls:
                self._environment.shared.limits.hit("grpc.handshake_timeout", self.peer)
            self.core.end()
            return
        idle_s = options.idle_s if self._calls else options.first_s
        limit_s = options.frame_s if self.core.input_bytes else idle_s
        if limit_s and now - self._heard_at >= limit_s:
            self.core.end()

    def announce_drain(self) -> None:
        """See `ConnectionProtocol`. The protocol has no word for it."""

    def drain(self, now: float) -> None:
        """See `ConnectionProtocol`."""
        self.core.end()

    def terminate(self, end: End) -> None:
        """See `ConnectionProtocol`."""
        self.core.terminate()
        if not self._dropping:
            self._dropping = True
            self._workload.run(self._drop_some)

    # --- answers ----------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """See `WireHost`."""
        return self._link.peer

    def respond(self, exchange: WireExchange, response: Any) -> None:
        """See `WireHost`."""
        self._forget(exchange)
        answer: list[Any] = []
        if response is not None:
            try:
                write = exchange.api.messages.write_response
                answer = write(exchange.version, response, exchange.correlation_id)
            except Exception as bug:
                # Not in the callback of the log, or of a group, that has brought the answer.
                self.broken(bug)
                return
            if exchange.is_token:
                answer = _bare_answer(response)
                self.core.is_bare = not self._is_logged_in
        self._write(exchange.number, answer)

    async def wait_turn(self, exchange: WireExchange) -> None:
        """See `WireHost`."""
        number = exchange.number
        while self.core.line != number:
            turn = self._turns[number] = asyncio.get_running_loop().create_future()
            await turn
        await self._link.wait_sendable(0)

    def expect_tokens(self) -> None:
        """See `WireHost`."""
        self.core.is_bare = True

    def note_failed_login(self, user: str) -> None:
        """See `WireHost`."""
        self._environment.shared.counters.logins_failed += 1
        self._environment.failed_logins.hit(user, self.peer)

    def end(self) -> None:
        """See `WireHost`."""
        self.core.end()
        self._link.touch()

    def broken(self, bug: Exception) -> None:
        """See `WireHost`."""
        self._link.broken(bug)

    # --- requests ---------------------------------------------------------------------------------

    @property
    def _is_logged_in(self) -> bool:
        """True also if nobody has to."""
        return self.user is not None or not self._environment.options.logs_in

    def _frame_bytes_max(self, key: int) -> int:
        return self._environment.frame_bytes_max(key, logged_in=self._is_logged_in)

    def _on_frame(self, frame: bytes) -> None:
        is_token = self.core.is_bare
        head = _TOKEN_HEAD if is_token else parse_head(frame)
        api = self._environment.table.find(head)
        if not self._is_logged_in and not (head.key == API_VERSIONS if api is None else api.before_login):
            self.refuse(f"API {head.key} before a login")
            return
        if api is None:
            self._on_unknown(head)
            return
        open_calls = self._open_calls
        if self._client.open >= open_calls.share or open_calls.open >= open_calls.limit:
            excess = open_calls.excess()
            self._environment.shared.limits.hit(excess.limit, self.peer)
            self.core.end()
            return
        if is_token:
            request: Any = SaslAuthenticateRequest(frame)
        else:
            request = api.messages.parse_request(head.version, frame, head.body)
        self._begin(api, head, request, len(frame))

    def _begin(self, api: ServedApi, head: KafkaHead, request: Any, size: int) -> None:
        held_bytes = size if size >= _HELD_BYTES_MIN else 0
        exchange = WireExchange(self, api, head, self._calls, held_bytes)
        exchange.is_token = head is _TOKEN_HEAD
        self._exchanges[self._calls] = exchange
        self._calls += 1
        self.core.running += 1
        self._open_calls.open += 1
        self._client.open += 1
        self._held_bytes += held_bytes
        api.requests[head.version] += 1
        if api.is_coroutine:
            work = Steps(_answer_with(exchange, request), self._workload)
            exchange.work = self._environment.shared.tasks.spawn(work, api.messages.name)
            return
        try:
            response = api.handler(exchange, request)
        except Exception as bug:
            exchange.fail(bug)
        else:
            if response is not None:
                exchange.answer(response)

    def _on_unknown(self, head: KafkaHead) -> None:
        refusal = self._environment.table.refusal(head)
        if refusal is None:
            self.refuse(f"version {head.version} of API {head.key} is not served")
            return
        messages = self._environment.table.by_key[API_VERSIONS].messages
        number = self._calls
        self._calls += 1
        self.core.running += 1
        self._write(number, messages.write_response(0, refusal, head.correlation_id))

    def refuse(self, reason: str) -> None:
        """See `WireHost`."""
        counters = self._environment.shared.counters
        counters.rejected += 1
        counters.faulty += 1
        log.info("a connection was ended for its request", client=self.peer, reason=reason)
        self.end()

    # --- inside -----------------------------------------------------------------------------------

    def _forget(self, exchange: WireExchange) -> None:
        del self._exchanges[exchange.number]
        self._open_calls.open -= 1
        self._client.open -= 1
        self._held_bytes -= exchange.held_bytes

    def _write(self, number: int, answer: list[Any]) -> None:
        core = self.core
        core.respond(number, answer)
        if not self._link.touched:
            self._link.touch()
        if self._turns and (turn := self._turns.pop(core.line, None)) is not None:
            resolve(turn, None)
        self._maybe_go_on()

    def _is_full(self) -> bool:
        """True if nothing is read until answers are written. Noted for `_maybe_go_on`."""
        if self._has_space():
            return False
        if not self._held:
            self._held = True
            self.core.hold(held=True)
            self._link.pause_input()
        return True

    def _maybe_go_on(self) -> None:
        if self._held and self._has_space():
            self._held = False
            self.core.hold(held=False)
            self._link.resume_input()

    def _has_space(self) -> bool:
        options = self._environment.options
        if self._exchanges and not self._is_logged_in:
            return False
        held = self._held_bytes + self.core.queued_bytes
        return len(self._exchanges) < options.unanswered_max and held < options.held_bytes

    def _drop_some(self) -> None:
        """Tell a slice of all exchanges that the client is gone."""
        try:
            for _ in range(_DROPPED_PER_SLICE):
                if not self._exchanges:
                    break
                # The last one: a dictionary is slow to find its first after many removals.
                exchange = next(reversed(self._exchanges.values()))
                self._forget(exchange)
                exchange.gone()
        finally:
            if self._exchanges:
                self._workload.queue(self._drop_some)
            else:
                self._dropping = False
                self._link.dropped()


def _bare_answer(response: SaslAuthenticateResponse) -> list[Any]:
    """The answer to a token: another one, or nothing if the login has failed."""
    token = response.auth_bytes
    return [] if response.error_code else [len(token).to_bytes(4, "big") + token]


async def _answer_with(exchange: WireExchange, request: Any) -> None:
    """Run a coroutine.

    It is made here: made earlier, nobody would await it if the task is cancelled before its first
    step.
    """
    try:
        response = await exchange.api.handler(exchange, request)
    except Exception as bug:
        exchange.fail(bug)
    else:
        exchange.answer(response)
