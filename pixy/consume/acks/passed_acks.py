"""Acks of records in partitions of other processes: they are passed to the owner, and answered as
the owner answers.

An ack is passed once: the process that is asked either has the partition or refuses. Whoever passes
looks for the owner again, because ownership moves.

Acks of a partition that wait travel together, in one call at a time. A node of an earlier release
takes the first of a call alone, and says nothing of the others, which then follow one by one.

Few calls are under way at a time (`PassingTurns`): an owner that cannot answer, as its partition
does not start, holds up the acks of that partition and of others that fail, and neither those of
partitions that are answered nor other calls between nodes.
"""

from collections.abc import Mapping
from itertools import islice

from pixy.aio.retries import Backoff
from pixy.backend import Backend, TopicPartition
from pixy.consume.acks.ack_lane import AckLane, AckOutcome, NotAnswered
from pixy.consume.core import UNDECIDED
from pixy.consume.partition import ConsumeEnvironment
from pixy.errors import AckElsewhere, DeadlineExceeded, InvalidAck, PixyError, Unavailable
from pixy.peers import decode_answer, decode_failure, encode_failure
from pixy.proto.consumer_calls_pb2 import AckOutcomes, ConsumerCall, PassedAck

_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 0.25
_ATTEMPT_S = 1.0
"""Patience with one owner: a silent one is replaced meanwhile."""
_ACKS_PER_CALL = 500
_OUTCOME_BYTES_MAX = 4200
"""Of an ack, with its error."""


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


async def pass_acks(environment: ConsumeEnvironment, lane: AckLane) -> bool:
    """Have the owner of a partition ack records, as many as fit into a call; their answers are its.

    Returns:
        False if there is no owner.

    Raises:
        AckElsewhere: the owner cannot be asked.
        Unavailable, DeadlineExceeded: the owner is not known, not any more, or does not answer.
    """
    partition = TopicPartition(lane.topic, lane.partition)
    owner = await environment.backend.partition_owner(lane.group, partition)
    if owner is None:
        return False
    where = f"{lane.topic}/{lane.partition}"
    if owner.node_id is None:
        raise AckElsewhere(
            f"ack not accepted: {where} of {lane.group} is consumed by {owner.client_id}; ack it there"
        )
    timeout_s = min(lane.deadline - environment.timers.monotonic(), _ATTEMPT_S)
    if timeout_s <= 0:
        raise DeadlineExceeded(f"the ack of {where} was not passed to its owner in time")
    offsets = [ack.offset for ack in islice(lane.acks, 1 if lane.one_by_one else _ACKS_PER_CALL)]
    request = PassedAck(
        group=lane.group,
        topic=lane.topic,
        partition=lane.partition,
        offset=offsets[0],
        more_offsets=offsets[1:],
        only_if_offered=lane.only_if_offered,
    )
    call = ConsumerCall(ack=request).SerializeToString()
    try:
        answer = await environment.backend.ask_node(owner.node_id, call, timeout_s)
    except UNDECIDED:
        raise
    except PixyError as error:
        await lane.answer(error, 1)
    else:
        if answer:
            await _take_outcomes(lane, len(offsets), answer)
        else:
            if len(offsets) > 1:
                lane.one_by_one = True
            await lane.answer(None, 1)
    return True


async def _take_outcomes(lane: AckLane, acks: int, answer: bytes) -> None:
    """Answer the acks of a call."""
    outcomes = decode_answer(AckOutcomes, answer, acks * _OUTCOME_BYTES_MAX)
    undecided = set(outcomes.undecided)
    refused = {each.position: each.failure for each in outcomes.refused}
    if outcomes.acks != acks or len(undecided) >= acks:
        raise Unavailable(
            f"a node answers {acks} acks of {lane.topic}/{lane.partition} with outcomes of {outcomes.acks}, of which "
            f"{len(undecided)} are undecided"
        )
    positions = iter(range(acks))

    def outcome(_: object) -> AckOutcome:
        position = next(positions)
        if position in undecided:
            return NotAnswered.WAITS
        failure = refused.get(position)
        return None if failure is None else decode_failure(failure)

    await lane.decide(outcome, acks)


def encode_outcomes(acks: int, outcomes: Mapping[int, PixyError | None]) -> bytes:
    """The answer to a call with several acks, of the outcomes of some."""
    return AckOutcomes(
        acks=acks,
        refused=[
            AckOutcomes.Refusal(position=position, failure=encode_failure(error))
            for position, error in outcomes.items()
            if error is not None
        ],
        undecided=[position for position in range(acks) if position not in outcomes],
    ).SerializeToString()
