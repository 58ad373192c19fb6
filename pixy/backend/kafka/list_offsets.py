"""Offsets of partitions by position and by timestamp (ListOffsets), read committed.

A leader that has just been elected may not know yet how far the log is committed. It then refuses
to tell the end (KIP-207), but reads it before it looks whether it has to refuse. If it learns the
truth between the two, it answers with what it had read, perhaps the beginning of the log; a
consumer that believed this would get everything again. So the end is asked for twice.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pixy.backend.kafka.client import SHORT_PATIENCE_S, KafkaClient, short_attempts
from pixy.backend.kafka.errors import error_for_code, is_retriable, is_stale
from pixy.backend.protocol import KnownRanges
from pixy.errors import PixyError, Unavailable, UnknownPartition, UnknownTopic
from pixy.kafka_protocol.messages import LIST_OFFSETS, READ_COMMITTED
from pixy.records import OffsetRange, TopicPartition

_ANSWER_S = 3.0
_CONSUMER = -1
_BEGIN = -2
_END = -1


async def list_ranges(
    client: KafkaClient, topic: str, numbers: Collection[int] | None = None
) -> Mapping[int, OffsetRange]:
    """Begin and end of the logs of a topic's partitions: of all, or of some.

    Raises:
        UnknownTopic: there is none.
        Unavailable: a leader could not be reached before the patience was used up.
    """
    known = await known_ranges(client, topic, numbers, SHORT_PATIENCE_S)
    for failure in known.unknown.values():
        raise failure
    return known.ranges


async def known_ranges(
    client: KafkaClient, topic: str, numbers: Collection[int] | None, patience_s: float
) -> KnownRanges:
    """As `Backend.known_ranges`."""
    known = client.metadata.topics.get(topic)
    if known is None:
        raise UnknownTopic(f"unknown topic {topic}")
    partitions = [
        TopicPartition(topic, each.partition)
        for each in known.partitions
        if numbers is None or each.partition in numbers
    ]
    failures: dict[TopicPartition, PixyError] = {}
    try:
        begins = await _list(client, partitions, _BEGIN, patience_s, failures)
        ends = await _list(client, begins, _END, patience_s, failures)
        latest = await _list(client, ends, _END, patience_s, failures)
    except UnknownPartition:
        raise UnknownTopic(f"topic {topic} was deleted") from None
    return KnownRanges(
        {
            each.partition: OffsetRange(begins[each], max(begins[each], ends[each], latest[each]))
            for each in latest
        },
        {each.partition: failures[each] for each in sorted(failures)},
    )


async def list_offset(client: KafkaClient, partition: TopicPartition, timestamp_ms: int) -> int | None:
    """The first offset whose record's timestamp is at or after `timestamp_ms`, None if there is
    none.
    """
    failures: dict[TopicPartition, PixyError] = {}
    found = await _list(client, [partition], max(timestamp_ms, 0), SHORT_PATIENCE_S, failures)
    for failure in failures.values():
        raise failure
    return None if found[partition] < 0 else found[partition]


async def _list(
    client: KafkaClient,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    patience_s: float,
    failures: dict[TopicPartition, PixyError],
) -> Mapping[TopicPartition, int]:
    """Offsets of the partitions that answer; the errors of the others are added to `failures`."""
    left = set(partitions)
    found: dict[TopicPartition, int] = {}
    attempts = short_attempts(patience_s)
    while left:
        failed: dict[TopicPartition, PixyError] = {}
        for leader, asked in _by_leader(client, left).items():
            try:
                answer = await _ask(client, leader, asked, timestamp)
            except PixyError as error:
                failed |= dict.fromkeys(asked, error)
                continue
            for topic, results in answer.topics:
                for number, code, _, offset in results:
                    partition = TopicPartition(topic, number)
                    if not code:
                        found[partition] = offset
                        left.discard(partition)
                        continue
                    failure = error_for_code(code, f"cannot read the offsets of {topic}-{number}")
                    if is_retriable(code) or is_stale(code):
                        failed[partition] = failure
                    else:
                        failures[partition] = failure
                        left.discard(partition)
        if left:
            failure = next(iter(failed.values()), Unavailable("Kafka has not answered in time"))
            try:
                await attempts.again(failure)
            except PixyError:
                failures |= {each: failed.get(each, failure) for each in left}
                break
            await _refresh(client, {each.topic for each in left}, failure)
    return found


async def _refresh(client: KafkaClient, topics: Iterable[str], failure: PixyError) -> None:
    """Refresh the metadata of topics, if a broker answers.

    Raises:
        UnknownPartition: one of the topics is gone.
    """
    topics = set(topics)
    try:
        await client.refresh(topics)
    except Unavailable:
        return
    for topic in topics - client.metadata.topics.keys():
        raise UnknownPartition(f"topic {topic} was deleted") from failure


async def _ask(client: KafkaClient, leader: int, partitions: Sequence[TopicPartition], timestamp: int) -> Any:
    if leader < 0:
        reasons = [client.no_leader(each) for each in partitions]
        topic, number = partitions[0]
        raise Unavailable(f"the offsets of {topic}-{number} cannot be read: {reasons[0]}")
    topics: dict[str, list[tuple[int, int]]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append((number, timestamp))
    request = LIST_OFFSETS(_CONSUMER, READ_COMMITTED, list(topics.items()))
    return await client.send(leader, request, timeout_s=_ANSWER_S)


def _by_leader(client: KafkaClient, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    leaders: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        leaders.setdefault(client.metadata.leader(*partition), []).append(partition)
    return leaders
