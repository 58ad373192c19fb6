"""Offers of one subscription for clients of other nodes, as these ask for them (`lending`).

A node that asks waits here for an offer; its next question replaces this one. A node is given up,
and everything that it has not settled is offered again at once, when its question is cancelled,
because it has lost patience or its connection has ended, and when nothing has been heard of it for
`SILENCE_S` after an answer.

A node that has a record whose ack is kept is asked whether it still has it: by an answer to its
question, which makes it send the next one. If it has said nothing for `NEWS_S`, the ack counts.
"""

import asyncio
from collections.abc import Callable

from pixy.aio.futures import resolve
from pixy.consume.core import Alarm, Timers
from pixy.consume.lending.lending import Lending, RecordPosition
from pixy.consume.lending.lent_records import decode_positions, encode_record
from pixy.consume.partition import Dispatcher
from pixy.proto.consumer_calls_pb2 import LentRecords, OffersRequest, Settled

SILENCE_S = 2.5
"""A node that holds records, or whose requests are queued, says more within this time."""
NEWS_S = 0.4
"""A node that holds records says more within this time of an answer, unless it is cut off."""


class _Borrower:
    """Another node.

    Attributes:
        lending: what is lent to it.
        alarm: at the end of its question, or of its silence after an answer.
        question: waits for records, None if none does.
        asked_at: time of the last question.
        news: at the end of its silence after a kept ack; None before the first.
    """

    __slots__ = ("_lender", "alarm", "asked_at", "lending", "news", "node_id", "question")

    def __init__(self, lender: "Lender", node_id: int) -> None:
        self._lender = lender
        self.node_id = node_id
        self.lending = Lending(lender.dispatcher, self._granted)
        self.alarm = Alarm(lender.timers, self._over)
        self.question: asyncio.Future[bytes] | None = None
        self.asked_at = 0.0
        self.news: Alarm | None = None

    def await_news(self) -> None:
        """Expect more of the node if acks are kept."""
        if self.lending.keeps_acks:
            if self.news is None:
                self.news = Alarm(self._lender.timers, self._no_news)
            self.news.at(self._lender.timers.monotonic() + NEWS_S)

    def _no_news(self, _: float) -> None:
        self.lending.settle_kept(lambda _: True)

    def _granted(self) -> None:
        # Records that come together are sent together.
        if self.question is not None:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        if self.lending.granted:
            self._lender.answer(self)

    def _over(self, _: float) -> None:
        if self.question is None:
            self._lender.give_up(self.node_id)
        else:
            self._lender.answer(self)

    def ended(self, question: "asyncio.Future[bytes]") -> None:
        """A question has ended; if it was cancelled, nobody hears the answer."""
        if question is self.question and question.cancelled():
            self._lender.give_up(self.node_id)


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

    def lend(self, node_id: int, request: OffersRequest) -> "asyncio.Future[bytes]":
        """Answer a question of another node, with serialized `LentRecords`.

        No coroutine: thousands of questions wait here.
        """
        now = self.timers.monotonic()
        borrower = self._borrower(node_id)
        self._end_question(borrower)
        question = borrower.question = asyncio.get_running_loop().create_future()
        borrower.asked_at = now
        question.add_done_callback(borrower.ended, context=self.timers.context)
        self._settle(borrower, request.settled)
        if question.done():
            return question  # the last acks have ended the subscription
        wanted = request.wanted if now >= self._paused_until else 0
        lending = borrower.lending
        lending.ask(wanted, set(decode_positions(request.held)), now)
        if borrower.news is not None:
            borrower.news.cancel()
            borrower.await_news()
        if request.wanted and not (lending.granted or lending.keeps_acks):
            borrower.alarm.at(now + request.wait_ms / 1000)
        else:
            self.answer(borrower)
        return question

    def answer(self, borrower: _Borrower) -> None:
        """Answer the question of another node with what there is."""
        question = borrower.question
        if question is None:
            return
        if question.cancelled():
            self.give_up(borrower.node_id)
            return
        borrower.question = None
        offers = borrower.lending.take()
        if not offers:
            borrower.lending.withdraw()
        self._await_more(borrower)
        waited_ms = round((self.timers.monotonic() - borrower.asked_at) * 1000)
        lent = LentRecords(records=[encode_record(offer) for offer in offers], waited_ms=waited_ms)
        resolve(question, lent.SerializeToString())

    def settle(self, node_id: int, settled: Settled) -> None:
        """Another node tells what became of records."""
        borrower = self._borrower(node_id)
        self._settle(borrower, settled)
        if borrower.question is None:
            self._await_more(borrower)

    def _await_more(self, borrower: _Borrower) -> None:
        """Give a node up that has nothing, others when nothing is heard of them."""
        borrower.alarm.cancel()
        if borrower.lending.idle:
            self.give_up(borrower.node_id)
        else:
            borrower.alarm.at(self.timers.monotonic() + SILENCE_S)

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

    def keep_ack(self, position: RecordPosition) -> None:
        """As `Lending.keep_ack`, for the node that has the record."""
        for borrower in self._borrowers.values():
            if borrower.lending.keep_ack(position):
                borrower.await_news()
                self.answer(borrower)
                return

    def settle_kept(self, covers: Callable[[int], bool]) -> None:
        """As `Lending.settle_kept`, for all nodes."""
        for borrower in self._borrowers.values():
            borrower.lending.settle_kept(covers)

    def count_as_out(self, covers: Callable[[int], bool]) -> set[int]:
        """As `Lending.count_as_out`, for all nodes."""
        lendings = [borrower.lending for borrower in self._borrowers.values()]
        return set().union(*(each.count_as_out(covers) for each in lendings))

    def give_up(self, node_id: int) -> None:
        """Nothing more is heard of a node, or nothing is expected."""
        borrower = self._borrowers.pop(node_id, None)
        if borrower is not None:
            self._end_question(borrower)
            if borrower.news is not None:
                borrower.news.cancel()
            borrower.lending.end()

    def _end_question(self, borrower: _Borrower) -> None:
        """Answer a question that waits without a record."""
        borrower.alarm.cancel()
        question, borrower.question = borrower.question, None
        if question is not None:
            resolve(question, b"")

    def close(self) -> None:
        """Lend no more; questions that wait are answered without a record."""
        for node_id in list(self._borrowers):
            self.give_up(node_id)

    def _borrower(self, node_id: int) -> _Borrower:
        borrower = self._borrowers.get(node_id)
        if borrower is None:
            borrower = self._borrowers[node_id] = _Borrower(self, node_id)
        return borrower
