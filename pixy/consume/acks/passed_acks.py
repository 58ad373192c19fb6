"""Acks of records in partitions of other processes: they are passed to the owner, and answered as
the owner answers.

An ack is passed once: the process that is asked either has the partition or refuses. Whoever passes
looks for the owner again, because ownership moves.

Few are under way at a time, and fewer of one partition: an owner that cannot answer, as its
partition does not start, holds up the acks of that partition and of others that fail, and neither
those of partitions that are answered nor other calls between nodes.
"""

from typing import TYPE_CHECKING

from pixy.aio.retries import Backoff
from pixy.backend import Backend, TopicPartition
from pixy.errors import AckElsewhere, DeadlineExceeded, InvalidAck
from pixy.proto.consumer_calls_pb2 import ConsumerCall, PassedAck

if TYPE_CHECKING:
    from pixy.consume.partition import ConsumeEnvironment

__all__ = ["check_ack", "owner_backoff", "pass_ack"]

_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 0.25
_ATTEMPT_S = 1.0
"""Patience with one owner: a silent one is replaced meanwhile."""


def check_ack(backend: Backend, topic: str, ack: tuple[int, int]) -> None:
    """Check partition and offset of an ack.

    Raises:
        InvalidAck: partition or offset is negative, or the topic lacks the partition.
    """
    partition, offset = ack
    if partition < 0:
        raise InvalidAck(f"invalid ack: bad partition: {partition}")
    if offset < 0:
        raise InvalidAck(f"invalid ack: bad offset: {offset}")
    description = backend.topic(topic)
    if description is not None and partition >= len(description.partitions):
        count = len(description.partitions)
        raise InvalidAck(f"invalid ack: bad partition: {partition}: {topic} has 0 to {count - 1}")


def owner_backoff() -> Backoff:
    """Pauses between attempts to reach the owner of a partition."""
    return Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S)


async def pass_ack(environment: "ConsumeEnvironment", ack: PassedAck, deadline: float) -> bool:
    """Have the owner of a partition ack a record; False if there is no owner.

    Raises:
        AckElsewhere: the owner cannot be asked.
        Unavailable, DeadlineExceeded: the owner is not known, not any more, or does not answer.
        PixyError: the answer of the owner.
    """
    partition = TopicPartition(ack.topic, ack.partition)
    async with environment.passing.turn(ack.group, partition, deadline):
        owner = await environment.backend.partition_owner(ack.group, partition)
        if owner is None:
            return False
        where = f"{ack.topic}/{ack.partition}"
        if owner.node_id is None:
            raise AckElsewhere(
                f"ack not accepted: {where} of {ack.group} is consumed by {owner.client_id}; ack it there"
            )
        timeout_s = min(deadline - environment.timers.monotonic(), _ATTEMPT_S)
        if timeout_s <= 0:
            raise DeadlineExceeded(f"the ack of {where} was not passed to its owner in time")
        request = ConsumerCall(ack=ack).SerializeToString()
        await environment.backend.ask_node(owner.node_id, request, timeout_s)
        return True
