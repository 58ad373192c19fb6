"""Calls of other processes of the same consumer groups: acks, offsets that are set, and offers.

They are answered by what is here: a call is never passed on.
"""

from collections.abc import Awaitable, Callable, Mapping

from pixy.consume.acks import encode_outcomes
from pixy.consume.group.group import ConsumerGroup
from pixy.consume.group.subscription import Subscription
from pixy.errors import FailedPrecondition, OwnedElsewhere
from pixy.proto.consumer_calls_pb2 import (
    ConsumerCall,
    OffersRequest,
    PassedAck,
    Reset,
    SetOffsets,
    Settled,
)
from pixy.records import OffsetCommit


class ConsumerCalls:
    """Answers to other nodes.

    Args:
        check_serving: raises `ShuttingDown` or `ServiceDisabled`.
        group: finds a consumer group that this process takes part in.
        subscription: finds a subscription by group and topic.
        set_passed: sets offsets here, by group, topic and partition, for another process.
    """

    def __init__(
        self,
        check_serving: Callable[[], None],
        group: Callable[[str], ConsumerGroup | None],
        subscription: Callable[[str, str], Subscription | None],
        set_passed: Callable[[str, str, Mapping[int, OffsetCommit]], Awaitable[None]],
    ) -> None:
        self._check_serving = check_serving
        self._group = group
        self._subscription = subscription
        self._set_passed = set_passed

    def answer(self, node_id: int, request: bytes) -> Awaitable[bytes]:
        """Answer a call of a node: a serialized `ConsumerCall`."""
        self._check_serving()
        call = ConsumerCall.FromString(request)
        if call.HasField("offers"):
            # Thousands wait for records: no frame of this class waits with them.
            return self._found(call.offers).lender.lend(node_id, call.offers)
        return self._answer(node_id, call)

    async def _answer(self, node_id: int, call: ConsumerCall) -> bytes:
        match call.WhichOneof("call"):
            case "ack":
                return await self._ack(call.ack)
            case "reset":
                await self._reset(call.reset)
            case "settled":
                self._found(call.settled).lender.settle(node_id, call.settled)
            case "set_offsets":
                await self._set_offsets(call.set_offsets)
            case _:
                raise FailedPrecondition("a call of consumer groups that this release does not know")
        return b""

    async def _ack(self, ack: PassedAck) -> bytes:
        acks, offsets = self._found(ack).acks, [ack.offset, *ack.more_offsets]
        outcomes = await acks.ack_passed(ack.partition, offsets, ack.only_if_offered)
        if len(offsets) > 1:
            return encode_outcomes(len(offsets), outcomes)
        error = outcomes[0]
        if error is not None:
            raise error
        return b""

    async def _set_offsets(self, call: SetOffsets) -> None:
        if self._group(call.group) is None:
            raise OwnedElsewhere(f"{call.group} is not consumed by this node")
        offsets = {each.partition: OffsetCommit(each.offset, each.metadata) for each in call.partitions}
        await self._set_passed(call.group, call.topic, offsets)

    async def _reset(self, reset: Reset) -> None:
        group = self._group(reset.group)
        if group is not None:
            await group.resets.wait(reset.topic, reset.partitions)

    def _found(self, call: PassedAck | OffersRequest | Settled) -> Subscription:
        subscription = self._subscription(call.group, call.topic)
        if subscription is None:
            raise OwnedElsewhere(f"topic {call.topic} is not consumed by this node for {call.group}")
        return subscription
