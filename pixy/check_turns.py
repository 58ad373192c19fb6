"""Long checks of record batches take turns, so that none waits for the end of another.

What takes half a millisecond at most is checked at once, on the event loop, and waits for nobody.
Everything else takes turns: a turn is half a millisecond on the event loop, or, for a batch that
takes more, another thread for `_SLICE_S` of processor time, or the batch that exceeds it. Then the
next check has its turn, of another client address if one has checks. So a check waits for a turn of
each of the other addresses, and of the others of its own, not for their ends, and one that nobody
waits for any more costs no further turn. One that costs more than its maximum is
refused where it exceeds it.

A batch is checked as a whole, so that only one is decompressed at a time. Small batches stay on the
loop, because a thread has to wait for the interpreter, for milliseconds if the loop is busy.
"""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, nullcontext
from time import thread_time

from pixy.aio.address_quota import AddressSemaphore
from pixy.aio.one_thread import OneThread
from pixy.errors import MessageTooLarge
from pixy.records import CheckEffort, LongCheckError

_SLICE_S = 0.005
_RECORDS = 2_000_000
_UNPACKED_BYTES = 128 << 20
_UNPACKED_FACTOR = 40


def effort_of(size: int) -> CheckEffort:
    """Largest cost of the check of so many bytes of batches: about a second, or more for more than
    3 MiB.

    Records without compression never exceed it.
    """
    return CheckEffort(max(_RECORDS, size), max(_UNPACKED_BYTES, _UNPACKED_FACTOR * size))


class SteppedCheck(ABC):
    """A check of batches, one after the other.

    Args:
        size: bytes of batches that its maximum is for; see `effort_of`.
        what: that which has the batches, for errors.
    """

    def __init__(self, size: int, what: str) -> None:
        self._size = size
        self._what = what
        # Effort that is left.
        self._left = effort_of(size)

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """All is checked."""

    @abstractmethod
    def _check_next(self, effort: CheckEffort) -> None:
        """Check the next batch.

        Raises:
            LongCheckError: it takes more than `effort`; it can be checked again.
            PixyError: the check ends.
        """

    def advance_shortly(self) -> bool:
        """Check what takes half a millisecond; True if the next batch takes more than that."""
        effort, is_first = CheckEffort(), True
        try:
            while not self.is_done:
                self._check_next(effort)
                is_first = False
        except LongCheckError:
            pass
        self._charge(effort)
        return is_first and not self.is_done

    def advance(self) -> None:
        """Check for the time of a slice."""
        end = thread_time() + _SLICE_S
        try:
            while not self.is_done and thread_time() < end:
                self._check_next(self._left)
        except LongCheckError:
            raise self._too_large() from None

    def _charge(self, effort: CheckEffort) -> None:
        """Count what was spent of the effort of a turn."""
        whole = CheckEffort()
        self._left.records -= whole.records - effort.records
        self._left.unpacked_bytes -= whole.unpacked_bytes - effort.unpacked_bytes
        if self._left.records < 0 or self._left.unpacked_bytes < 0:
            raise self._too_large()

    def _too_large(self) -> MessageTooLarge:
        allowed = effort_of(self._size)
        return MessageTooLarge(
            f"the batches of the {self._what} decompress to more than {allowed.unpacked_bytes} bytes, or have more than "
            f"{allowed.records} records, where a compressed byte counts as 8, a batch as 64 records, an uncompressed record "
            f"as an eighth and a header as a quarter besides; send fewer batches in a {self._what}"
        )


class CheckTurns:
    """Checks that take turns."""

    def __init__(self) -> None:
        self._turn = AddressSemaphore(1, 1)
        self._thread = OneThread()

    @property
    def is_idle(self) -> bool:
        """True if no check has a turn."""
        return not self._turn.acquired and self._thread.is_idle

    async def run(
        self,
        check: SteppedCheck,
        client: str = "",
        room: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        """Run a check to its end.

        Args:
            client: address of the client that it is for; "": of no client.
            room: entered for the turns, if it needs any.

        Raises:
            MessageTooLarge: it costs too much.
            PixyError: what the check finds.
        """
        is_long = check.advance_shortly()
        if check.is_done:
            return
        async with room or nullcontext():
            while not check.is_done:
                async with self._turn.holding(client, 1):
                    if is_long:
                        await self._thread.run(check.advance)
                    is_long = check.advance_shortly()
                await asyncio.sleep(0)
