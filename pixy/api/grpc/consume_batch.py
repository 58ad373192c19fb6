"""ConsumeBatch of pixy_log.proto: many calls of ConsumeNAck and Ack in one.

It is answered by callback, as these are. All offers of an answer have one receipt: they are
delivered together, or none is.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from pixy.aio.steps import run_in_steps
from pixy.api.grpc.refusals import proxy_of
from pixy.consume import ConsumeDone, ConsumeRequest, Offer, PendingRequest
from pixy.errors import InvalidArgument, LongPollTimeout, PixyError
from pixy.proto import pixy_log_pb2 as pb
from pixy.proxy import Proxy
from pixy.rpc import Cancellable, UnaryCall

__all__ = ["BatchConsuming"]

_MESSAGES_MAX = 1000
_ANSWER_BYTES = 1 << 20
"""Size of messages after which an answer takes no further one."""
_TAKEN_AT_ONCE = 100
"""Messages that are taken in one iteration of the loop: half a millisecond."""
_ACKED_AT_ONCE = 50
"""Acks, likewise."""


class BatchConsuming:
    """Handler of `ConsumeBatch`.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
    """

    def __init__(self, proxies: Mapping[str, Proxy]) -> None:
        self._proxies = proxies

    def consume_batch(self, request: pb.ConsumeBatchRequest, call: UnaryCall) -> Cancellable | None:
        """# pixy_log.proto: ConsumeBatch"""
        if not 1 <= request.max_messages <= _MESSAGES_MAX:
            raise InvalidArgument(
                f"max_messages is {request.max_messages}, expected a number from 1 to {_MESSAGES_MAX}"
            )
        batch = _BatchCall(proxy_of(self._proxies, request.cluster), request, call)
        batch.begin()
        return batch


class _BatchCall:
    """One call: its acks, then its messages."""

    __slots__ = (
        "_acks",
        "_call",
        "_cancelled",
        "_consumed",
        "_error",
        "_loop",
        "_offers",
        "_pending",
        "_proxy",
        "_request",
    )

    def __init__(self, proxy: Proxy, request: pb.ConsumeBatchRequest, call: UnaryCall) -> None:
        self._proxy = proxy
        self._request = request
        # Of each message.
        self._consumed = ConsumeRequest(
            request.group, request.topic, request.auto_ack, must_exist=request.must_exist
        )
        self._call = call
        # Acks without an answer, and one for `begin` while it asks.
        self._acks = 1
        self._error: PixyError | None = None
        # The request for the first message, while it waits.
        self._pending: PendingRequest | None = None
        self._cancelled = False
        self._offers: list[Offer] = []
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Acknowledge, some in each iteration of the loop, and hand out messages when all acks are
        answered.
        """
        run_in_steps(self._ack_all())

    def _ack_all(self) -> Iterator[None]:
        request = self._request
        for at, ack in enumerate(request.acks):
            if at and not at % _ACKED_AT_ONCE:
                yield
            self._acks += 1
            try:
                self._proxy.ack(
                    request.group, request.topic, ack.partition, ack.offset, self._acked, self._call
                )
            except PixyError as error:
                self._acked(error)
        self._acked(None)

    def cancel(self) -> None:
        """The client has given up: no message is handed out."""
        self._cancelled = True
        if self._pending is not None:
            self._pending.cancel()

    def _acked(self, error: PixyError | None) -> None:
        self._error = self._error or error
        self._acks -= 1
        if self._acks or self._cancelled:
            return
        if self._error is not None:
            self._call.fail(self._error)
            return
        try:
            self._pending = self._consume(self._first)
        except PixyError as refusal:
            self._call.fail(refusal)

    def _consume(self, done: ConsumeDone) -> PendingRequest | None:
        return self._proxy.consume(self._consumed, done, self._call.deadline, self._call)

    def _first(self, offer: Offer | None, error: PixyError | None) -> None:
        if offer is None:
            self._call.fail(error or LongPollTimeout())
            return
        self._offers.append(offer)
        # The dispatcher serves no other request within this callback.
        self._loop.call_soon(self._take_more)

    def _take_more(self) -> None:
        """Take the messages that are at hand, some in each iteration of the loop, and answer."""
        offers, found = self._offers, list[Offer | None]()

        def took(offer: Offer | None, _: PixyError | None) -> None:
            found.append(offer)

        most = min(self._request.max_messages, len(offers) + _TAKEN_AT_ONCE)
        size = sum(offer.size for offer in offers)
        while len(offers) < most and size < _ANSWER_BYTES and not self._cancelled:
            try:
                waiting = self._consume(took)
            except PixyError:
                break
            if waiting is not None:
                waiting.cancel()
            offer = found.pop() if found else None
            if offer is None:
                break
            offers.append(offer)
            size += offer.size
        else:
            if len(offers) < self._request.max_messages and size < _ANSWER_BYTES and not self._cancelled:
                self._loop.call_soon(self._take_more)
                return
        self._answer()

    def _answer(self) -> None:
        receipt = _OffersReceipt(self._offers)
        try:
            answer = pb.ConsumeBatchResponse(messages=map(_message, self._offers))
        except Exception as bug:
            self._call.fail(bug, receipt)
            return
        self._call.answer(answer, receipt)


class _OffersReceipt:
    """The receipt of an answer with several offers."""

    __slots__ = ("_offers",)

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers

    def delivered(self) -> None:
        for offer in self._offers:
            offer.delivered()

    def undelivered(self) -> None:
        for offer in self._offers:
            offer.undelivered()


def _message(offer: Offer) -> pb.ConsumedMessage:
    record = offer.record
    return pb.ConsumedMessage(
        partition=offer.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=[pb.MessageHeader(key=name, value=value) for name, value in record.headers],
        timestamp_ms=record.timestamp,
    )
