"""Offers of other nodes for consume requests that wait here (`borrowing`).

One task for each owner of partitions of the topic, as long as requests wait here, or something is
to be told to it. It asks one question at a time: for as many records as requests wait. Records go
to the requests that have waited longest; what nobody takes is given back with the next question,
which follows at once.

Requests that wait are told to every owner, so two may send a record for the same one. The road not
taken: one owner after the other. A record would wait for the owner that is asked last.

    the node that is asked                       here
    does not answer, or has no subscription      asked again after a growing pause, as long as it
                                                 is an owner
    answers late, because of a pause of a        records are given back: the owner may have offered
    process or a slow connection                 them again
    is no owner any more                         what it has lent is void and forgotten
"""

from collections.abc import Awaitable, Callable, Sequence
from math import inf

from pixy.aio.futures import SmallEvent
from pixy.aio.retries import Backoff
from pixy.consume.lending.borrowing import Borrowing, Settlements
from pixy.consume.lending.lender import NEWS_S, SILENCE_S
from pixy.consume.lending.lending import LENT_BYTES_MAX
from pixy.consume.lending.lent_records import decode_record, encode_positions
from pixy.consume.partition import ConsumeEnvironment, Dispatcher
from pixy.errors import PixyError
from pixy.peers import decode_answer
from pixy.proto.consumer_calls_pb2 import ConsumerCall, LentRecords, OffersRequest, Settled

_WAIT_S = 1.0
"""Time that a question waits for records."""
_PATIENCE_S = 1.5
"""Time for the way of question and answer."""
_LATE_S = 1.0
"""Records that took longer are given back. Less than `SILENCE_S`, after which others get them."""
_LINGER_S = 0.005
"""Pause before what became of records is told on its own: a client's next request brings a
question.
"""
_KEEPALIVE_S = 0.2
"""Pause between questions while records are held, well below `NEWS_S`."""
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 1.0

assert _LATE_S < SILENCE_S
assert 2 * _KEEPALIVE_S <= NEWS_S


class _Owner:
    """Another node, while it is asked."""

    __slots__ = (
        "_borrower",
        "asking",
        "borrowing",
        "node_id",
        "telling",
        "wake",
    )

    def __init__(self, borrower: "Borrower", node_id: int) -> None:
        self._borrower = borrower
        self.node_id = node_id
        self.borrowing = Borrowing(borrower.topic, self._settled)
        # Requests wait, or there is something to tell.
        self.wake = SmallEvent()
        # A question, and a call that tells settlements, is under way.
        self.asking = False
        self.telling = False

    def _settled(self) -> None:
        self._borrower.settled(self)


class Borrower:
    """Offers of other nodes for one subscription.

    Args:
        environment: the cluster, time and tasks.
        group, topic: of the subscription.
        dispatcher: of the subscription.
        on_told: called when an owner may have heard everything.
    """

    __slots__ = (
        "_closed",
        "_dispatcher",
        "_environment",
        "_group",
        "_on_told",
        "_owners",
        "borrowed_at",
        "topic",
    )

    def __init__(
        self,
        environment: ConsumeEnvironment,
        group: str,
        topic: str,
        dispatcher: Dispatcher,
        on_told: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._group = group
        self.topic = topic
        self._dispatcher = dispatcher
        self._on_told = on_told
        self._owners: dict[int, _Owner] = {}
        # Time of the last record for a client here.
        self.borrowed_at = -inf
        self._closed = False

    @property
    def owing(self) -> bool:
        """True while records are held, or owners wait to hear of them."""
        return any(not owner.borrowing.idle for owner in self._owners.values())

    def ask(self) -> bool:
        """Ask all owners for records, unless they are being asked; False if there is none."""
        nodes = self._nodes()
        for node_id in nodes:
            owner = self._owners.get(node_id)
            if owner is not None:
                owner.wake.set()
            elif not self._closed:
                owner = self._owners[node_id] = _Owner(self, node_id)
                name = f"borrow {self.topic} for {self._group} from node {node_id}"
                self._environment.tasks.spawn(self._borrow(owner), name)
        return bool(nodes)

    def close(self) -> None:
        """Ask for nothing more; what became of records is still told."""
        self._closed = True
        for owner in self._owners.values():
            owner.wake.set()

    def _nodes(self) -> Sequence[int]:
        return self._environment.backend.other_owners(self._group, self.topic)

    async def _borrow(self, owner: _Owner) -> None:
        backoff = Backoff(_BACKOFF_MIN_S, _BACKOFF_MAX_S)
        try:
            while await self._has_question(owner):
                try:
                    await self._ask(owner)
                except PixyError:
                    if owner.node_id not in self._nodes():
                        owner.borrowing.forget()
                    else:
                        await self._environment.timers.sleep(backoff.grow())
                else:
                    backoff.reset()
        finally:
            del self._owners[owner.node_id]
            self._on_told()

    async def _has_question(self, owner: _Owner) -> bool:
        """Wait until there is something to ask or to tell; False if there is nothing any more."""
        borrowing = owner.borrowing
        if self._wanted(owner) or borrowing.urgent:
            return True
        if borrowing.idle:
            return False
        owner.wake.clear()
        pause = _LINGER_S if borrowing.untold else _KEEPALIVE_S
        await self._environment.timers.wait(owner.wake, pause)
        return True

    def _wanted(self, owner: _Owner) -> int:
        """Number of records to ask for."""
        if self._closed or owner.node_id not in self._nodes():
            return 0
        return self._dispatcher.waiting

    async def _ask(self, owner: _Owner) -> None:
        """Ask one question."""
        monotonic = self._environment.timers.monotonic
        number, call = self._begin_question(owner)
        asked = monotonic()
        owner.asking = True
        try:
            answer = await call
            lent = decode_answer(LentRecords, answer, 2 * LENT_BYTES_MAX)
        except PixyError:
            owner.borrowing.failed(number)
            raise
        finally:
            owner.asking = False
        owner.borrowing.confirmed(number)
        self._take(owner, lent, is_late=monotonic() - asked - lent.waited_ms / 1000 > _LATE_S)

    def _begin_question(self, owner: _Owner) -> tuple[int, Awaitable[bytes]]:
        """The number of what a question tells, and its call: nothing else of it stays in memory."""
        wanted = self._wanted(owner)
        number, settlements = owner.borrowing.tell()
        request = OffersRequest(
            group=self._group,
            topic=self.topic,
            wanted=wanted,
            wait_ms=round(_WAIT_S * 1000),
            held=encode_positions(owner.borrowing.held),
            settled=self._packed(settlements),
        )
        timeout_s = _PATIENCE_S + (_WAIT_S if wanted else 0)
        try:
            return number, self._call(owner, ConsumerCall(offers=request), timeout_s)
        except PixyError:
            owner.borrowing.failed(number)
            raise

    def _take(self, owner: _Owner, lent: LentRecords, *, is_late: bool) -> None:
        """Hand out the records of an answer."""
        offers = [owner.borrowing.accept(each.partition, decode_record(each)) for each in lent.records]
        for offer in offers:
            if is_late or not self._dispatcher.give(offer):
                offer.undelivered()
            else:
                self.borrowed_at = self._environment.timers.monotonic()

    def settled(self, owner: _Owner) -> None:
        """It is known what became of a record."""
        owner.wake.set()
        if owner.asking and not owner.telling:
            owner.telling = True
            name = f"settle {self.topic} of {self._group} with node {owner.node_id}"
            self._environment.tasks.spawn(self._tell(owner), name)

    async def _tell(self, owner: _Owner) -> None:
        """Tell what became of records while a question waits for an answer."""
        try:
            while owner.asking and owner.borrowing.untold:
                number, settlements = owner.borrowing.tell()
                try:
                    await self._call(owner, ConsumerCall(settled=self._packed(settlements)), _PATIENCE_S)
                except PixyError:
                    owner.borrowing.failed(number)
                    return  # the next question tells it
                owner.borrowing.confirmed(number)
        finally:
            owner.telling = False
            owner.wake.set()

    def _call(self, owner: _Owner, call: ConsumerCall, timeout_s: float) -> Awaitable[bytes]:
        return self._environment.backend.ask_node(owner.node_id, call.SerializeToString(), timeout_s)

    def _packed(self, settlements: Settlements) -> Settled:
        delivered, acked, undelivered = map(encode_positions, settlements)
        return Settled(
            group=self._group,
            topic=self.topic,
            delivered=delivered,
            acked=acked,
            undelivered=undelivered,
        )
