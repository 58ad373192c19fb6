"""Calls to a peer, on a connection that this node has dialled.

A call has a number; its answer may come in any order. It ends with the answer, with the patience of
the caller, or with the connection, whichever is first, and what is true of its effects is known in
the first case only.

A timer that is late follows a pause of the process: the answer may be in the inbox, so the call
waits for another moment.
"""

import asyncio
from typing import NamedTuple

from pixy.aio.futures import reject, resolve
from pixy.errors import DeadlineExceeded, MessageTooLarge, PixyError, Unavailable
from pixy.peers.activity import LATE_S
from pixy.peers.failures import decode_failure
from pixy.peers.frames import CALL, CANCEL
from pixy.peers.link import PeerLink
from pixy.peers.options import PeerOptions

_INBOX_S = 0.1
_MILLISECONDS_MAX = (1 << 32) - 1


class _PendingCall(NamedTuple):
    answer: "asyncio.Future[bytes | memoryview]"
    payload_bytes: int


class PeerCalls:
    """Calls in flight of one connection.

    Args:
        link: the connection.
        options: see `PeerOptions`.
        who: the peer, for errors.
    """

    def __init__(self, link: PeerLink, options: PeerOptions, who: str) -> None:
        self._link = link
        self._options = options
        self._who = who
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, _PendingCall] = {}
        self._last = 0
        # Invariant: the sum of `payload_bytes` of the pending calls.
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    async def call(self, method: int, payload: bytes, timeout: float) -> bytes:
        """Call the peer.

        Raises:
            DeadlineExceeded: no answer within `timeout` seconds.
            Unavailable: too many calls are in flight, or the connection is or gets lost.
            PixyError: the answer.
        """
        answer = await self.call_view(method, payload, timeout)
        return answer if isinstance(answer, bytes) else bytes(answer)

    async def call_view(self, method: int, payload: bytes, timeout: float) -> bytes | memoryview:
        """As `call`; a large answer is a view of what was received, without a copy."""
        number, answer = self._begin(method, payload, timeout)
        timer = self._loop.call_later(timeout, self._expire, number, self._loop.time() + timeout)
        try:
            return await answer
        except asyncio.CancelledError:
            if number in self._pending:
                self._link.send(CANCEL, 0, 0, number, ())
            raise
        finally:
            timer.cancel()
            self._take(number)

    def answered(self, number: int, payload: bytes | memoryview) -> None:
        """An ANSWER has come."""
        pending = self._take(number)
        if pending is not None:
            resolve(pending.answer, payload)

    def failed(self, number: int, payload: bytes | memoryview) -> None:
        """A FAILURE has come."""
        pending = self._take(number)
        if pending is not None:
            reject(pending.answer, decode_failure(payload))

    def lost(self, reason: str) -> None:
        """The connection has ended."""
        for number in list(self._pending):
            self._fail(number, Unavailable(f"the connection to {self._who} has ended: {reason}"))

    def _begin(
        self, method: int, payload: bytes, timeout: float
    ) -> "tuple[int, asyncio.Future[bytes | memoryview]]":
        size, options = len(payload), self._options
        if size > self._link.bytes_max:
            raise MessageTooLarge(
                f"a call to {self._who} has {size} bytes, at most {self._link.bytes_max} are allowed"
            )
        if len(self._pending) >= options.calls_max or (
            self._pending and self._bytes + size > options.calls_bytes
        ):
            raise Unavailable(
                f"{len(self._pending)} calls to {self._who} with {self._bytes} bytes are in flight; "
                f"{options.calls_max} calls and {options.calls_bytes} bytes are allowed"
            )
        self._last = number = self._last + 1
        milliseconds = min(max(1, int(timeout * 1000)), _MILLISECONDS_MAX)
        if not self._link.send(CALL, method, milliseconds, number, (payload,)):
            raise Unavailable(f"the connection to {self._who} takes no more: its send queue is full")
        answer: asyncio.Future[bytes | memoryview] = self._loop.create_future()
        self._pending[number] = _PendingCall(answer, size)
        self._bytes += size
        return number, answer

    def _take(self, number: int) -> _PendingCall | None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._bytes -= pending.payload_bytes
        return pending

    def _fail(self, number: int, error: PixyError) -> None:
        pending = self._take(number)
        if pending is not None:
            reject(pending.answer, error)

    def _expire(self, number: int, due: float) -> None:
        now = self._loop.time()
        if now - due > LATE_S:
            self._loop.call_later(_INBOX_S, self._expire, number, now + _INBOX_S)
        else:
            self._link.send(CANCEL, 0, 0, number, ())
            self._fail(
                number, DeadlineExceeded(f"{self._who} has not answered in time; the outcome is unknown")
            )
