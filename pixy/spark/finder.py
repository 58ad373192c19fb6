"""Resolves the positions of the options to partitions and offsets, by asking the daemon."""

from collections.abc import Iterable, Mapping, Sequence

from pixy.errors import InvalidArgument, OffsetOutOfRange
from pixy.proto import pixy_log_pb2 as pb
from pixy.records import TopicPartition
from pixy.spark.client import LogClient
from pixy.spark.offsets import Offsets
from pixy.spark.positions import EARLIEST, LATEST, At, Position
from pixy.spark.topic_selection import TopicSelection

_SHOWN_MAX = 10


class OffsetFinder:
    """Finds the partitions of a topic selection and their offsets.

    Args:
        fail_on_data_loss: True to fail for an offset outside the log; False to use the nearest one.
    """

    def __init__(self, client: LogClient, subscription: TopicSelection, *, fail_on_data_loss: bool) -> None:
        self._client = client
        self._subscription = subscription
        self._fail_on_data_loss = fail_on_data_loss

    def topics(self) -> dict[str, pb.Topic]:
        """The existing topics."""
        return {each.topic: each for each in self._client.describe(self._subscription.topics).topics}

    def partitions(self, topics: Mapping[str, pb.Topic], *, must_exist: bool) -> list[TopicPartition]:
        """The partitions to read, sorted.

        Raises:
            InvalidArgument: `must_exist`, and a named topic or partition does not exist.
        """
        counts = {name: each.partitions for name, each in topics.items()}
        if must_exist:
            self._subscription.check_exists(counts)
        return self._subscription.partitions(counts)

    def latest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """End offset of each partition; partitions that do not exist are missing."""
        return self._ask([(each, LATEST) for each in partitions])

    def find(self, position: Position, partitions: Sequence[TopicPartition]) -> Offsets:
        """Resolves a position to offsets.

        Raises:
            InvalidArgument: it does not name exactly these partitions, or all records are older.
            OffsetOutOfRange: an offset is not in the log, with `fail_on_data_loss`.
        """
        position = position.by_each(partitions)
        if position.by_partition and set(position.by_partition) != set(partitions):
            raise InvalidArgument(
                f"option {position.option} names {_show(position.by_partition)}: "
                f"it must name exactly the partitions to read, {_show(partitions)}"
            )
        if position.at is At.TIMESTAMP:
            return self._by_timestamp(position, partitions)
        if position.at is At.OFFSETS:
            return self._by_offset(position)
        constant = EARLIEST if position.at is At.EARLIEST else LATEST
        return self._ask([(each, constant) for each in partitions])

    def _by_offset(self, position: Position) -> Offsets:
        wanted = position.by_partition
        earliest = self._ask([(each, EARLIEST) for each in wanted])
        latest = self._ask([(each, LATEST) for each in wanted])
        found = {}
        for each, offset in wanted.items():
            begin, end = earliest.get(each, 0), latest.get(each, 0)
            exact = begin if offset == EARLIEST else end if offset == LATEST else offset
            if not begin <= exact <= end and self._fail_on_data_loss:
                raise OffsetOutOfRange(
                    f"option {position.option} says offset {exact} for {each.topic}-{each.partition}, which has {begin} to "
                    f"{end}; with failOnDataLoss=false the nearest offset is used",
                    begin,
                    end,
                )
            found[each] = min(max(exact, begin), end)
        return found

    def _by_timestamp(self, position: Position, partitions: Sequence[TopicPartition]) -> Offsets:
        stamps = {each: position.by_partition.get(each, position.timestamp_ms) for each in partitions}
        answers = self._client.list_offsets(
            [
                pb.OffsetQuery(topic=each.topic, partition=each.partition, timestamp_ms=ms)
                for each, ms in stamps.items()
            ]
        )
        found = {each: answer.offset for each, answer in zip(stamps, answers, strict=True)}
        unmatched = [each for each, offset in found.items() if offset < 0]
        if unmatched and not position.else_latest:
            raise InvalidArgument(
                f"option {position.option}: {_show(unmatched)} has no record at or after {stamps[unmatched[0]]} ms; "
                "with startingOffsetsByTimestampStrategy=latest reading starts at the end"
            )
        return {**found, **self.latest(unmatched)}

    def _ask(self, wanted: Iterable[tuple[TopicPartition, int]]) -> Offsets:
        asked = list(wanted)
        answers = self._client.list_offsets(
            [
                pb.OffsetQuery(topic=each.topic, partition=each.partition, earliest=True)
                if constant == EARLIEST
                else pb.OffsetQuery(topic=each.topic, partition=each.partition, latest=True)
                for each, constant in asked
            ]
        )
        return {
            each: answer.offset
            for (each, _), answer in zip(asked, answers, strict=True)
            if not answer.unknown_partition
        }


def _show(partitions: Iterable[TopicPartition]) -> str:
    names = [f"{each.topic}-{each.partition}" for each in sorted(partitions)]
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return ", ".join(names[:_SHOWN_MAX]) + more if names else "none"
