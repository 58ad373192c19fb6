"""Offers of one subscription for clients of other nodes, as these ask for them (`lending`).

A node that asks waits here for an offer; its next question replaces this one. A node is given up,
and everything that it has not settled is offered again at once, when its question is cancelled,
because it has lost patience or its connection has ended, and when nothing has been heard of it for
`SILENCE_S` after an answer.
"""

import asyncio
from collections.abc import Callable

from pixy.aio.futures import SmallEvent
from pixy.consume.core import Alarm, Timers
from pixy.consume.lending.lending import Lending, RecordPosition
from pixy.consume.lending.lent_records import decode_positions, encode_record
from pixy.consume.partition import Dispatcher
from pixy.proto.consumer_calls_pb2 import LentRecords, OffersRequest, Settled

__all__ = ["SILENCE_S", "Lender"]

SILENCE_S = 2.5
"""A node that holds records, or whose requests are queued, says more within this time."""


class _Borrower:
    """Another node."""

    __slots__ = (
        "_lender",
        "_node_id",
        "changed",
        "lending",
        "questions",
        "silence",
        "waiting",
    )

    def __init__(self, lender: "Lender", node_id: int) -> None:
        self.changed = SmallEvent()
        self.lending = Lending(lender.dispatcher, self.changed.set)
        self._lender = lender
        self._node_id = node_id
        # Number of its questions. Invariant: increases with each.
        self.questions = 0
        # A question waits here.
        self.waiting = False
        self.silence = Alarm(lender.timers, self._silent)

    def _silent(self, _: float) -> None:
        self._lender.give_up(self._node_id)


class Lender:
    """Offers for other nodes.

    Args:
        timers: clock and timers.
        dispatcher: of the subscription.
        acked: called with records that clients of other nodes got with auto ack.
    """

    __slots__ = (
        "_acked",
        "_borrowers",
        "_paused_until",
        "dispatcher",
        "timers",
    )

    def __init__(
        self, timers: Timers, dispatcher: Dispatcher, acked: Callable[[RecordPosition], None]
    ) -> None:
        self.timers = timers
        self.dispatcher = dispatcher
        self._acked = acked
        self._borrowers: dict[int, _Borrower] = {}
        # Nothing is lent before this time.
        self._paused_until = 0.0

    @property
    def active(self) -> bool:
        """True while other nodes ask for records, or have some."""
        return bool(self._borrowers)

    async def lend(self, node_id: int, request: OffersRequest) -> bytes:
        """Answer a question of another node, with serialized `LentRecords`."""
        begun = self.timers.monotonic()
        borrower = self._borrower(node_id)
        borrower.questions += 1
        number = borrower.questions
        borrower.waiting = False
        borrower.changed.set()  # the end of an earlier question
        borrower.silence.cancel()
        self._settle(borrower, request.settled)
        wanted = request.wanted if begun >= self._paused_until else 0
        borrower.lending.ask(wanted, set(decode_positions(request.held)), begun)
        is_asked, until = bool(request.wanted), begun + request.wait_ms / 1000
        del request  # not kept while it waits
        # Not in a function of its own: thousands wait here, each with a frame.
        borrower.waiting = is_asked
        try:
            while is_asked and borrower.questions == number and not borrower.lending.granted:
                now = self.timers.monotonic()
                if now >= until:
                    break
                borrower.changed.clear()
                await self.timers.wait(borrower.changed, until - now)
        except asyncio.CancelledError:
            if borrower.questions == number:
                self.give_up(node_id)
            raise
        return self._answer(borrower, number, node_id, begun)

    def _answer(self, borrower: _Borrower, number: int, node_id: int, begun: float) -> bytes:
        """The answer to a question, without records if another one has replaced it."""
        if borrower.questions != number:
            return b""
        borrower.waiting = False
        offers = borrower.lending.take()
        if not offers:
            borrower.lending.withdraw()
        now = self.timers.monotonic()
        if borrower.lending.idle:
            self.give_up(node_id)
        else:
            borrower.silence.at(now + SILENCE_S)
        lent = LentRecords(
            records=[encode_record(offer) for offer in offers], waited_ms=round((now - begun) * 1000)
        )
        return lent.SerializeToString()

    def settle(self, node_id: int, settled: Settled) -> None:
        """Another node tells what became of records."""
        borrower = self._borrower(node_id)
        self._settle(borrower, settled)
        if borrower.waiting:
            return
        borrower.silence.cancel()
        if borrower.lending.idle:
            self.give_up(node_id)
        else:
            borrower.silence.at(self.timers.monotonic() + SILENCE_S)

    def _settle(self, borrower: _Borrower, settled: Settled) -> None:
        lending = borrower.lending
        lending.delivered(decode_positions(settled.delivered))
        lending.undelivered(decode_positions(settled.undelivered))
        for position in lending.acked(decode_positions(settled.acked)):
            self._acked(position)

    def pause(self, until: float) -> None:
        """Lend nothing more until a time; what is lent stays."""
        self._paused_until = until
        for borrower in self._borrowers.values():
            borrower.lending.withdraw()

    def resume(self) -> None:
        """Lend again, from the next questions on."""
        self._paused_until = 0.0

    def give_up(self, node_id: int) -> None:
        """Nothing more is heard of a node, or nothing is expected."""
        borrower = self._borrowers.pop(node_id, None)
        if borrower is not None:
            borrower.questions += 1
            borrower.changed.set()
            borrower.silence.cancel()
            borrower.lending.end()

    def close(self) -> None:
        """Lend no more; questions that wait are answered without a record."""
        for node_id in list(self._borrowers):
            self.give_up(node_id)

    def _borrower(self, node_id: int) -> _Borrower:
        borrower = self._borrowers.get(node_id)
        if borrower is None:
            borrower = self._borrowers[node_id] = _Borrower(self, node_id)
        return borrower
