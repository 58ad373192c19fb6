"""New offsets of a consumer group, and what they make come again.

The offsets are computed here from those of the log and of the group, but for the oldest and the
newest one, which the daemon knows best. A dry run shows all of it and sets nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pixy.cli.connection import CallFailed, DaemonConnection, no_partition
from pixy.cli.peek import list_offsets
from pixy.elements_per_call import ELEMENTS_PER_CALL

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2 import PartitionOffset
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

EARLIEST = -2
LATEST = -1
"""Offsets that the daemon resolves."""
NOTHING_COMMITTED = -1


class PlannedOffset(NamedTuple):
    """The new offset of a partition, with what is acknowledged above it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The change of one partition.

    Attributes:
        before: offset of the group, -1 if it has none.
        after: the new one.
        again: messages that come again.
        skipped: messages that do not come any more.
        end: of the log; messages between it and `after` may not come either.
    """

    topic: str
    partition: int
    before: int
    after: int
    again: int
    skipped: int
    end: int


def offsets_of(
    connection: DaemonConnection, stub: "KafkaPixyStub", group: str, topic: str
) -> "list[PartitionOffset]":
    """Offsets of a topic and of the group in it."""
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.GetOffsetsRq(cluster=connection.cluster, topic=topic, group=group)
    return list(stub.GetOffsets(request, timeout=connection.timeout).offsets)


def plan(
    topic: str, found: "Sequence[PartitionOffset]", planned: Mapping[int, PlannedOffset]
) -> list[OffsetChange]:
    """Changes that new offsets of some partitions make.

    Raises:
        CallFailed: a partition does not exist.
    """
    known = {each.partition: each for each in found}
    for number in planned:
        if number not in known:
            raise no_partition(topic, number, len(known))
    return [_change(topic, known[number], planned[number]) for number in sorted(planned)]


def _change(topic: str, found: "PartitionOffset", planned: PlannedOffset) -> OffsetChange:
    after = {EARLIEST: found.begin, LATEST: found.end}.get(planned.offset, planned.offset)
    had, gets = _delivered(found, found.offset, _acks(found)), _delivered(found, after, planned.metadata)
    return OffsetChange(
        topic,
        found.partition,
        found.offset,
        after,
        _length(_without(had, gets)),
        _length(_without(gets, had)),
        found.end,
    )


Ranges = list[tuple[int, int]]


def _acks(of: "PartitionOffset") -> str:
    """The acks in the metadata of an offset; empty if the daemon says that it is another
    program's.
    """
    return of.metadata if of.sparse_acks else ""


def _delivered(found: "PartitionOffset", offset: int, metadata: str) -> Ranges:
    """Ranges of stored messages that a group with this offset does not get any more, ascending."""
    from pixy.consume import decode
    from pixy.errors import InvalidOffset

    if offset == NOTHING_COMMITTED:
        return []
    acked: Ranges = []
    with suppress(InvalidOffset):  # metadata of another program
        acked = [(each[0], each[1]) for each in decode(offset, metadata)]
    ranges = [(found.begin, offset), *acked]
    return [
        (max(low, found.begin), min(high, found.end))
        for low, high in ranges
        if low < found.end and high > found.begin
    ]


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    """Parts of ranges that are in no other range."""
    left = ranges
    for low, high in others:
        left = [
            part
            for begin, end in left
            for part in ((begin, min(end, low)), (max(begin, high), end))
            if part[0] < part[1]
        ]
    return left


def _length(ranges: Ranges) -> int:
    return sum(high - low for low, high in ranges)


def set_offsets(
    connection: DaemonConnection,
    stub: "KafkaPixyStub",
    group: str,
    topic: str,
    planned: Mapping[int, PlannedOffset],
) -> None:
    """Set new offsets, all or none of at most `ELEMENTS_PER_CALL` partitions."""
    from pixy.proto import kafkapixy_pb2

    offsets = [
        kafkapixy_pb2.PartitionOffset(partition=number, offset=each.offset, metadata=each.metadata)
        for number, each in planned.items()
    ]
    for at in range(0, len(offsets), ELEMENTS_PER_CALL):
        request = kafkapixy_pb2.SetOffsetsRq(
            cluster=connection.cluster, topic=topic, group=group, offsets=offsets[at : at + ELEMENTS_PER_CALL]
        )
        stub.SetOffsets(request, timeout=connection.timeout)


# --- rules for all partitions ---------------------------------------------------------------------


Rule = Callable[[str, "Sequence[PartitionOffset]"], Mapping[int, PlannedOffset]]
"""New offsets of the partitions of a topic."""


def to_offset(offset: int) -> Rule:
    """One offset, which may be the oldest or the newest."""
    return lambda _, found: {each.partition: PlannedOffset(offset) for each in found}


def shift_by(count: int) -> Rule:
    """So many messages further, or back if negative, within the log."""

    def shifted(topic: str, found: "Sequence[PartitionOffset]") -> Mapping[int, PlannedOffset]:
        without = [str(each.partition) for each in found if each.offset == NOTHING_COMMITTED]
        if without:
            raise CallFailed(
                f"cannot shift partitions {', '.join(without)} of {topic}: the group has no offset there"
            )
        return {
            each.partition: PlannedOffset(min(max(each.offset + count, each.begin), each.end))
            for each in found
        }

    return shifted


def to_time(connection: DaemonConnection, timestamp_ms: int) -> Rule:
    """The first message at or after a time, or the end as it was before the search: what has come
    since may be at or after the time.
    """

    def found_at(topic: str, found: "Sequence[PartitionOffset]") -> Mapping[int, PlannedOffset]:
        from pixy.proto import pixy_log_pb2

        queries = [
            pixy_log_pb2.OffsetQuery(topic=topic, partition=each.partition, timestamp_ms=timestamp_ms)
            for each in found
        ]
        with connection.open_log() as stub:
            answers = list_offsets(connection, stub, queries)
        return {
            each.partition: PlannedOffset(each.end if answer.offset < 0 else answer.offset)
            for each, answer in zip(found, answers, strict=True)
        }

    return found_at


def from_group(connection: DaemonConnection, stub: "KafkaPixyStub", other: str) -> Rule:
    """Offsets and acknowledged ranges of another group, where it has any."""

    def copied(topic: str, found: "Sequence[PartitionOffset]") -> Mapping[int, PlannedOffset]:
        wanted = {each.partition for each in found}
        return {
            each.partition: PlannedOffset(each.offset, _acks(each))
            for each in offsets_of(connection, stub, other, topic)
            if each.offset != NOTHING_COMMITTED and each.partition in wanted
        }

    return copied


def topics_of(
    connection: DaemonConnection, stub: "KafkaPixyStub", group: str
) -> "Iterator[tuple[str, list[PartitionOffset]]]":
    """Topics in which a group has offsets, with these, by name."""
    import grpc

    from pixy.cli.connection import status_name
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListTopicRq(cluster=connection.cluster)
    for topic in sorted(stub.ListTopics(request, timeout=connection.timeout).topics):
        try:
            found = offsets_of(connection, stub, group, topic)
        except grpc.RpcError as error:
            if status_name(error) != "NOT_FOUND":
                raise
            continue  # deleted meanwhile
        if any(each.offset != NOTHING_COMMITTED for each in found):
            yield topic, found
