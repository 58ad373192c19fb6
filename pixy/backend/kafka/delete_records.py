"""Removal of the records below an offset (DeleteRecords), at the leader of each partition.

A request may be sent again: it has no effect then.
"""

from collections.abc import Mapping

from pixy.backend.kafka.client import KafkaClient, short_attempts
from pixy.backend.kafka.errors import error_for_code, is_retriable, is_stale
from pixy.backend.kafka.list_offsets import list_ranges
from pixy.errors import OffsetOutOfRange, PixyError, Unavailable
from pixy.kafka_protocol.messages import DELETE_RECORDS
from pixy.records import TopicPartition

_TIMEOUT_MS = 10_000
_CHANGE_S = 15.0


async def delete_records(client: KafkaClient, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """As `Backend.delete_records`, with partitions that are known.

    The end is that which is shown: Kafka would also remove what lies behind it, the records of
    transactions that are being written, and these would be committed without them.

    Raises:
        OffsetOutOfRange: an offset lies behind the end.
        Unavailable: a leader could not be reached before the patience was used up.
    """
    ranges = await list_ranges(client, topic, offsets.keys())
    for number, offset in offsets.items():
        begin, end = ranges[number]
        if offset > end:
            what = f"offset {offset} of {topic}-{number} is out of range: {begin} to {end} are served"
            raise OffsetOutOfRange(what, begin, end)
    offsets = {number: offset if offset >= 0 else ranges[number].end for number, offset in offsets.items()}
    begins: dict[int, int] = {}
    attempts = short_attempts()
    while left := offsets.keys() - begins.keys():
        failure: PixyError = Unavailable("Kafka has not answered in time")
        by_leader: dict[int, list[tuple[int, int]]] = {}
        for number in sorted(left):
            by_leader.setdefault(client.metadata.leader(topic, number), []).append((number, offsets[number]))
        for leader, asked in by_leader.items():
            try:
                found, code = await _ask(client, leader, topic, asked)
            except Unavailable as error:
                failure = error
                continue
            begins |= found
            if code:
                failure = error_for_code(code, f"cannot remove records of {topic}")
                if not (is_retriable(code) or is_stale(code)):
                    raise failure
        if begins.keys() != offsets.keys():
            await attempts.again(failure)
            await client.refresh([topic])
    return begins


async def _ask(
    client: KafkaClient, leader: int, topic: str, asked: list[tuple[int, int]]
) -> tuple[dict[int, int], int]:
    """Begins of the partitions that succeeded, and the error code of one that did not, or 0."""
    if leader < 0:
        raise Unavailable(
            f"records of {topic} cannot be removed: {client.no_leader(TopicPartition(topic, asked[0][0]))}"
        )
    answer = await client.send(leader, DELETE_RECORDS([(topic, asked)], _TIMEOUT_MS), timeout_s=_CHANGE_S)
    results = [each for _, partitions in answer.topics for each in partitions]
    codes = [code for _, _, code in results if code]
    return {number: begin for number, begin, code in results if not code}, codes[0] if codes else 0
