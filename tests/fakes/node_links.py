"""Calls between the consumer groups of in-memory backends: links may be cut, slow or lossy."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pixy.aio.futures import reject, resolve
from pixy.consume import Timers
from pixy.errors import DeadlineExceeded, PixyError, Unavailable
from pixy.peers.failures import decode_failure, encode_failure

Handler = Callable[[int, bytes], Awaitable[bytes]]


@dataclass(eq=False, slots=True)
class _Call:
    """A call in flight."""

    asker: int
    node_id: int
    answer: "asyncio.Future[bytes]"
    handling: "asyncio.Task[None] | None" = None


class FakeLinks:
    """Links between nodes.

    Args:
        timers: for delays and timeouts; None: there are none.

    Attributes:
        delay_s: of each request and of each answer.
        calls: (asking node, asked node, request) of each call.
    """

    def __init__(self, timers: Timers | None = None) -> None:
        self.timers = timers
        self.delay_s = 0.0
        self.calls: list[tuple[int, int, bytes]] = []
        self._handlers: dict[int, Handler] = {}
        self._cut: set[frozenset[int]] = set()
        self._in_flight: dict[_Call, None] = {}
        # Number of answers to lose together with their connection.
        self._lost = 0

    def serve(self, node_id: int, handler: Handler) -> None:
        """Have a handler answer the calls of a node."""
        self._handlers[node_id] = handler

    def cut(self, *nodes: int) -> None:
        """Cut the link between two nodes, or all links of one; calls in flight fail."""
        others = nodes[1:] or [each for each in self._handlers if each != nodes[0]]
        for other in others:
            self._cut.add(frozenset((nodes[0], other)))
        for call in list(self._in_flight):
            if frozenset((call.asker, call.node_id)) in self._cut:
                self._lose(call)

    def heal(self) -> None:
        """Restore all links."""
        self._cut.clear()

    def lose_answers(self, count: int) -> None:
        """Lose the next answers: their connection ends after the handlers have run."""
        self._lost = count

    async def ask(self, asker: int, node_id: int, request: bytes, timeout_s: float) -> bytes:
        """See `Backend.ask_node`."""
        self.calls.append((asker, node_id, request))
        if node_id not in self._handlers or frozenset((asker, node_id)) in self._cut:
            raise Unavailable(f"no connection to node {node_id}")
        call = _Call(asker, node_id, asyncio.get_running_loop().create_future())
        self._in_flight[call] = None
        call.handling = asyncio.create_task(self._handle(call, request), name=f"call of node {asker}")
        timer = self.timers.call_later(timeout_s, lambda: self._expire(call)) if self.timers else None
        try:
            return await call.answer
        finally:
            if timer is not None:
                timer.cancel()
            self._end(call)

    async def _handle(self, call: _Call, request: bytes) -> None:
        outcome: bytes | PixyError
        await self._travel()
        try:
            outcome = await self._handlers[call.node_id](call.asker, request)
        except PixyError as error:
            outcome = decode_failure(encode_failure(error))
        if self._lost:
            self._lost -= 1
            self._lose(call)
            return
        await self._travel()
        if isinstance(outcome, PixyError):
            reject(call.answer, outcome)
        else:
            resolve(call.answer, outcome)

    async def _travel(self) -> None:
        if self.delay_s:
            assert self.timers is not None
            await self.timers.sleep(self.delay_s)
        else:
            await asyncio.sleep(0)

    def _expire(self, call: _Call) -> None:
        reject(call.answer, DeadlineExceeded(f"node {call.node_id} has not answered in time"))

    def _lose(self, call: _Call) -> None:
        reject(call.answer, Unavailable(f"the connection to node {call.node_id} has ended"))
        self._end(call)

    def _end(self, call: _Call) -> None:
        """End the handler of a call that has an outcome or no caller any more."""
        self._in_flight.pop(call, None)
        if call.handling is not None and call.handling is not asyncio.current_task():
            call.handling.cancel()
