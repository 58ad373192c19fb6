"""Acks of records in partitions of other processes: they are passed to the owner, and answered as
the owner answers.

An ack is passed once: the process that is asked either has the partition or refuses. Whoever passes
looks for the owner again, because ownership moves.

Few are under way at a time, and fewer of one partition: an owner that cannot answer, as its
partition does not start, holds up the acks of that partition and of others that fail, and neither
those of partitions that are answered nor other calls between nodes.
"""

from typing import TYPE_CHECKING

from pixy.backend import Backend, TopicPartition
from pixy.errors import AckElsewhere, DeadlineExceeded, InvalidAck
from pixy.proto.consumer_calls_pb2 import ConsumerCall, PassedAck

if TYPE_CHECKING:
    from pixy.consume.partition import ConsumeEnvironment

__all__ = ["check_ack", "pass_ack"]

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


async def pass_ack(
    environment: "ConsumeEnvironment",
    group: str,
    partition: TopicPartition,
    offset: int,
    only_if_offered: bool,
    deadline: float,
) -> bool:
    """Have the owner of a partition ack a record; False if there is no owner.

    Raises:
        AckElsewhere: the owner cannot be asked.
        Unavailable, DeadlineExceeded: the owner is not known, not any more, or does not answer.
        PixyError: the answer of the owner.
    """
    async with environment.passing.turn(group, partition, deadline):
        return await _pass_ack(environment, group, partition, offset, only_if_offered, deadline)


async def _pass_ack(
    environment: "ConsumeEnvironment",
    group: str,
    partition: TopicPartition,
    offset: int,
    only_if_offered: bool,
    deadline: float,
) -> bool:
    topic, number = partition
    owner = await environment.backend.partition_owner(group, partition)
    if owner is None:
        return False
    if owner.node_id is None:
        raise AckElsewhere(
            f"ack not accepted: {topic}/{number} of {group} is consumed by {owner.client_id}; ack it there"
        )
    ack = PassedAck(
        group=group, topic=topic, partition=number, offset=offset, only_if_offered=only_if_offered
    )
    timeout_s = min(deadline - environment.timers.monotonic(), _ATTEMPT_S)
    if timeout_s <= 0:
        raise DeadlineExceeded(f"the ack of {topic}/{number} was not passed to its owner in time")
    request = ConsumerCall(ack=ack).SerializeToString()
    await environment.backend.ask_node(owner.node_id, request, timeout_s)
    return True
