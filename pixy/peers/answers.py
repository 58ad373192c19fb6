"""Calls of a peer, on a connection that it has dialled: one task each, and their limits.

A call that waits is cancelled when its caller gives up or its connection ends. An answer that finds
the queue of the connection full becomes UNAVAILABLE if that fits, and is dropped otherwise: a peer
that does not read costs a bounded amount of memory.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from pixy.errors import DeadlineExceeded, Internal, PixyError, Unavailable
from pixy.faults import OnFault, internal_error
from pixy.peers.failures import encode_failure
from pixy.peers.frames import ANSWER, FAILURE, Payload
from pixy.peers.hello import Hello
from pixy.peers.link import PeerLink
from pixy.peers.options import PeerOptions
from pixy.tasks import Tasks

__all__ = ["PeerAnswers"]

OnCall = Callable[[Hello, int, bytes], Awaitable[bytes]]


class PeerAnswers:
    """Running calls of one connection.

    Args:
        link: the connection.
        caller: the peer.
        on_call: see `PeerHooks`.
        options: see `PeerOptions`.
        on_fault: called with exceptions that are no `PixyError`.
        bytes_max: largest answer.
    """

    def __init__(
        self,
        link: PeerLink,
        caller: Hello,
        on_call: OnCall,
        options: PeerOptions,
        on_fault: OnFault,
        bytes_max: int,
    ) -> None:
        self._link = link
        self._caller = caller
        self._on_call = on_call
        self._options = options
        self._on_fault = on_fault
        self._bytes_max = bytes_max
        self._tasks = Tasks(on_fault)
        self._running: dict[int, asyncio.Task[None]] = {}
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
        elif number in self._running:
            self._fail(number, Internal(f"call {number} of {self._caller} is running already"))
        else:
            self._bytes += size
            call = self._serve(method, milliseconds / 1000, number, bytes(payload))
            task = self._running[number] = self._tasks.spawn(call, "call of a peer")
            task.add_done_callback(partial(self._ended, number, size))

    def cancel(self, number: int) -> None:
        """A CANCEL has come: the caller no longer waits."""
        task = self._running.get(number)
        if task is not None:
            task.cancel()

    def lost(self) -> None:
        """The connection has ended."""
        for task in list(self._running.values()):
            task.cancel()

    async def wait_ended(self) -> None:
        """Return when no call is running; after `lost`."""
        await self._tasks.cancel_all()

    def _ended(self, number: int, size: int, _: "asyncio.Task[None]") -> None:
        del self._running[number]
        self._bytes -= size

    async def _serve(self, method: int, timeout: float, number: int, payload: bytes) -> None:
        try:
            async with asyncio.timeout(timeout) as patience:
                answer = await self._on_call(self._caller, method, payload)
        except PixyError as error:
            self._fail(number, error)
        except TimeoutError as error:
            if not patience.expired():
                self._broken(number, error)
            else:
                self._fail(number, DeadlineExceeded(f"the call took longer than {timeout:.3f} s"))
        except Exception as bug:
            self._broken(number, bug)
        else:
            self._answer(number, answer)

    def _answer(self, number: int, answer: Payload) -> None:
        if len(answer) > self._bytes_max:
            size = len(answer)
            self._fail(
                number, Internal(f"the answer has {size} bytes, at most {self._bytes_max} are allowed")
            )
        elif not self._link.send(ANSWER, 0, 0, number, (answer,)):
            self._fail(number, Unavailable("the connection takes no more: its send queue is full"))

    def _broken(self, number: int, bug: Exception) -> None:
        self._on_fault(bug)
        self._fail(number, internal_error(bug))

    def _fail(self, number: int, error: PixyError) -> None:
        self._link.send(FAILURE, 0, 0, number, (encode_failure(error),))
