"""ConsumeBatch of pixy_log.proto: many calls of ConsumeNAck and Ack in one.

It is answered by callback, as these are. All offers of an answer have one receipt: they are
delivered together, or none is.
"""

from collections.abc import Mapping

from pixy.api.grpc.batch_acks import BatchAcks
from pixy.api.grpc.refusals import proxy_of
from pixy.consume import AckDone, ConsumeDone, ConsumeRequest, Offer, OffersReceipt, PendingRequest
from pixy.errors import InvalidArgument, LongPollTimeout, PixyError
from pixy.proto import pixy_log_pb2 as pb
from pixy.proxy import Proxy
from pixy.rpc import Cancellable, UnaryCall

_MESSAGES_MAX = 1000
_ANSWER_BYTES = 1 << 20
"""Size of messages after which an answer takes no further one."""
_TAKEN_AT_ONCE = 100
"""Messages that are taken in one step: half a millisecond."""


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
        BatchAcks(request.acks, batch.ack, call, batch.acked).begin()
        return batch


class _BatchCall:
    """The messages of one call, after its acks."""

    __slots__ = (
        "_acks_memory",
        "_call",
        "_cancelled",
        "_consumed",
        "_most",
        "_offers",
        "_pending",
        "_proxy",
    )

    def __init__(self, proxy: Proxy, request: pb.ConsumeBatchRequest, call: UnaryCall) -> None:
        self._proxy = proxy
        # The request itself has thousands of acks, and the call waits for messages.
        self._most = request.max_messages
        # Of each message.
        self._consumed = ConsumeRequest(
            request.group, request.topic, request.auto_ack, must_exist=request.must_exist
        )
        self._call = call
        # Its acks are taken in steps, also when the client has gone.
        self._acks_memory = call.request_memory()
        # The request for the first message, while it waits.
        self._pending: PendingRequest | None = None
        self._cancelled = False
        self._offers: list[Offer] = []

    def cancel(self) -> None:
        """The client has given up: no message is handed out."""
        self._cancelled = True
        if self._pending is not None:
            self._pending.cancel()

    def ack(self, partition: int, offset: int, done: AckDone) -> None:
        """Acknowledge one message."""
        consumed = self._consumed
        self._proxy.ack(consumed.group, consumed.topic, partition, offset, done, self._call)

    def acked(self, error: PixyError | None) -> None:
        """All acks are answered: hand out messages, unless one was refused."""
        self._acks_memory()
        if self._cancelled:
            return
        if error is not None:
            self._call.fail(error)
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
        self._call.step_later(self._take_more)

    def _take_more(self) -> None:
        """Take the messages that are at hand, some in each step, and answer."""
        offers, found = self._offers, list[Offer | None]()

        def took(offer: Offer | None, _: PixyError | None) -> None:
            found.append(offer)

        most = min(self._most, len(offers) + _TAKEN_AT_ONCE)
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
            if len(offers) < self._most and size < _ANSWER_BYTES and not self._cancelled:
                self._call.step_later(self._take_more)
                return
        self._answer()

    def _answer(self) -> None:
        receipt = OffersReceipt(self._offers)
        try:
            answer = pb.ConsumeBatchResponse(messages=map(_message, self._offers))
        except Exception as bug:
            self._call.fail(bug, receipt)
            return
        self._call.answer(answer, receipt)


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
