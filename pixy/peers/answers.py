"""Calls of a peer, on a connection that it has dialled, and their limits.

The answer of the layer above is an awaitable: a coroutine becomes one task, a future needs none.
It is cancelled when the caller gives up, when its patience ends, after `call_s`, or with the
connection.

An answer that finds the send queue full becomes UNAVAILABLE if that fits, and is dropped otherwise:
a peer that does not read costs a bounded amount of memory.

A call whose payload is malformed ends the connection, as a message does.
"""

import asyncio
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pixy.errors import DeadlineExceeded, Internal, PixyError, Unavailable
from pixy.faults import internal_error
from pixy.peers.environment import PeerEnvironment
from pixy.peers.failures import encode_failure
from pixy.peers.frames import ANSWER, FAILURE, FrameDamage
from pixy.peers.hello import Hello
from pixy.peers.link import PeerLink
from pixy.peers.options import Answer, PeerHooks


class _RunningCall(NamedTuple):
    answer: "asyncio.Future[Answer]"
    timer: asyncio.TimerHandle
    payload_bytes: int


class PeerAnswers:
    """Running calls of one connection.

    Args:
        environment: of all connections.
        link: the connection.
        caller: the peer.
        hooks: answer the calls.
    """

    def __init__(self, environment: PeerEnvironment, link: PeerLink, caller: Hello, hooks: PeerHooks) -> None:
        self._options = environment.options
        self._on_fault = environment.on_fault
        self._link = link
        self._caller = caller
        self._on_call = hooks.on_call
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, _RunningCall] = {}
        # Invariant: payload bytes of the running calls.
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, method: int, milliseconds: int, number: int, payload: bytes | memoryview) -> None:
        """A CALL has come."""
        size, options = len(payload), self._options
        if len(self._running) >= options.calls_max or (
            self._running and self._bytes + size > options.calls_bytes
        ):
            self._fail(number, Unavailable(f"{len(self._running)} calls of {self._caller} are running"))
            return
        if number in self._running:
            self._fail(number, Internal(f"call {number} of {self._caller} is running already"))
            return
        try:
            answer = asyncio.ensure_future(self._on_call(self._caller, method, bytes(payload)))
        except Exception as error:
            self._failed(number, error)
            return
        timeout_s = min(milliseconds / 1000, options.call_s)
        timer = self._loop.call_later(timeout_s, self._expire, number)
        self._running[number] = _RunningCall(answer, timer, size)
        self._bytes += size
        answer.add_done_callback(partial(self._done, number))

    def cancel(self, number: int) -> None:
        """A CANCEL has come: the caller no longer waits."""
        running = self._take(number)
        if running is not None:
            running.answer.cancel()

    def lost(self) -> "list[asyncio.Future[Answer]]":
        """The connection has ended; returns what is being cancelled."""
        answers = [running.answer for running in self._running.values()]
        for number in list(self._running):
            self.cancel(number)
        return answers

    def _expire(self, number: int) -> None:
        self.cancel(number)
        self._fail(number, DeadlineExceeded(f"{self._caller} waits no longer; the outcome is unknown"))

    def _take(self, number: int) -> _RunningCall | None:
        running = self._running.pop(number, None)
        if running is not None:
            self._bytes -= running.payload_bytes
            running.timer.cancel()
        return running

    def _done(self, number: int, answer: "asyncio.Future[Answer]") -> None:
        # The call may have been cancelled, and its number may have been used again.
        running = self._running.get(number)
        if running is None or running.answer is not answer:
            if not answer.cancelled() and (late := answer.exception()) is not None:
                self._note(late)
            return
        self._take(number)
        if answer.cancelled():
            self._fail(number, Unavailable("the call was cancelled on the node that was called"))
        elif (error := answer.exception()) is not None:
            self._failed(number, error)
        else:
            self._answer(number, answer.result())

    def _answer(self, number: int, answer: Answer) -> None:
        parts = (answer,) if isinstance(answer, bytes) else answer
        size = sum(map(len, parts))
        if size > self._link.bytes_max:
            self._fail(
                number, Internal(f"the answer has {size} bytes, at most {self._link.bytes_max} are allowed")
            )
        elif not self._link.send(ANSWER, 0, 0, number, parts):
            self._fail(number, Unavailable("the connection takes no more: its send queue is full"))

    def _failed(self, number: int, error: BaseException) -> None:
        if isinstance(error, (FrameDamage, DecodeError)):
            self._link.damaged(f"call {number} is malformed: {error}")
            return
        self._note(error)
        self._fail(number, error if isinstance(error, PixyError) else internal_error(error))

    def _note(self, error: BaseException) -> None:
        if not isinstance(error, (PixyError, FrameDamage, DecodeError)):
            self._on_fault(error)

    def _fail(self, number: int, error: PixyError) -> None:
        self._link.send(FAILURE, 0, 0, number, (encode_failure(error),))
