"""Topics whose direction is turned: what was the copy becomes the source.

A mirror that has copied a topic knows which of its offsets are those of the copy. Turned around,
that is the beginning of a mirror in the other direction: nothing that was copied is copied back,
and offsets of groups are those of the same records. Each turn has a number, and the mirror with the
higher one is right. Of two that run in both directions one would copy what the other has copied,
without an end; so the turn is in four steps:

    1  the sink of the other direction is closed against everything that is not there yet
    2  its positions are read
    3  records of the new target that were not copied are looked for, and records of others among
       the copies: there must be none
    4  the positions, turned around, are published at the new target

Targets in the map of the other direction are where its records are at least: a transaction of Kafka
that was aborted leaves offsets behind. So each run is looked for.
"""

from collections.abc import Iterator, Mapping, Sequence

from pixy.mirror.cluster_client import ClusterClient
from pixy.mirror.mirrored_topics import MirrorError
from pixy.mirror.positions import Copied, CopiedPartition, Positions, TopicPositions
from pixy.mirror.runs import Run
from pixy.mirror.taken_batches import take_batches
from pixy.mirror.target_sink import TargetSink
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.records import TopicPartition


def turned_elsewhere(
    own: Positions,
    other: Positions,
    topics: Mapping[str, log_pb.Topic],
    copies: Mapping[str, log_pb.Topic],
) -> list[str]:
    """Topics that a mirror in the other direction has copied, and this one not since.

    Args:
        own, other: positions of both.
        topics, copies: topics of the source and of the target.
    """
    return [
        name
        for name, found in other.topics.items()
        if name in topics
        and name in copies
        and (found.source_id, found.target_id) == (copies[name].topic_id, topics[name].topic_id)
        and (name not in own.topics or own.topics[name].turn < found.turn)
    ]


class TurnedTopics:
    """The turn of some topics.

    Args:
        source, target: the clusters of the new direction.
        other: sink of the other direction, at the source.
        sink: of the new one.
    """

    def __init__(
        self, source: ClusterClient, target: ClusterClient, other: TargetSink, sink: TargetSink
    ) -> None:
        self._source = source
        self._target = target
        self._other = other
        self._sink = sink

    def run(self, topics: Sequence[log_pb.Topic], copies: Mapping[str, log_pb.Topic]) -> None:
        """Turn topics of the source, whose copies will be these.

        Raises:
            MirrorError: a copy has records that were not copied, or its offsets cannot be known.
        """
        self._other.establish()
        copied: list[Copied] = []
        for topic in topics:
            found = self._other.positions.topics[topic.topic]
            self._check_all_copied(copies[topic.topic], found)
            for number, partition in found.partitions.items():
                runs = self._exact(topic, number, partition.runs)
                last = runs[-1]
                self._check_copies(topic, number, runs, partition.records)
                turned = [Run(run.target, run.source, run.records) for run in runs]
                if turned[0].source:
                    # Groups below the oldest run that is known go to its begin.
                    turned.insert(0, Run(0, turned[0].target, 0))
                copied.append(
                    Copied(
                        TopicPartition(topic.topic, number),
                        topic.topic_id,
                        copies[topic.topic].topic_id,
                        last.target + last.records,
                        partition.records,
                        tuple(turned),
                        found.turn + 1,
                    )
                )
        self._sink.publish(self._sink.begin_round(), copied, [])

    def _check_all_copied(self, copy: log_pb.Topic, found: TopicPositions) -> None:
        partitions = [TopicPartition(copy.topic, number) for number in range(copy.partitions)]
        begins, ends = self._target.ends(partitions, begins=True), self._target.ends(partitions)
        for partition in partitions:
            known = found.partitions.get(partition.partition, CopiedPartition(0))
            begin = max(known.next, begins[partition])
            for offset in self._offsets(self._target, copy, [(partition.partition, begin, ends[partition])]):
                raise MirrorError(
                    f"topic {copy.topic} has records at the target from offset {offset} of partition "
                    f"{partition.partition} on that were not copied to the source: copy them first, without --back"
                )

    def _check_copies(self, topic: log_pb.Topic, number: int, runs: Sequence[Run], records: int) -> None:
        """Check that nobody else has written among the copies; that would not be copied back."""
        begin, end = runs[0].target, runs[-1].target + runs[-1].records
        if end - begin == records:
            return
        # Offsets without records are those of a cluster of Kafka, or of removed records.
        partition = TopicPartition(topic.topic, number)
        if self._source.ends([partition], begins=True)[partition] > begin:
            return
        wanted = log_pb.FetchRange(
            topic=topic.topic, partition=number, from_offset=begin, to_offset=end, topic_id=topic.topic_id
        )
        found = sum(
            run.records
            for answer in self._source.fetch([wanted])
            for each in take_batches(answer.batches, begin)
            for run in each.sources
        )
        if found != records:
            raise MirrorError(
                f"partition {number} of topic {topic.topic} has {found} records where {records} were copied: others have written "
                "among them, and would not be copied back"
            )

    def _exact(self, topic: log_pb.Topic, number: int, runs: Sequence[Run]) -> list[Run]:
        """The runs as they are at the source of the new direction."""
        partition = TopicPartition(topic.topic, number)
        begin = self._source.ends([partition], begins=True)[partition]
        end = self._source.ends([partition])[partition]
        wanted = [(number, run.target, run.target + 1) for run in runs if run.target >= begin]
        there = set(self._offsets(self._source, topic, wanted))
        found: list[Run] = []
        for at, run in enumerate(runs):
            target = run.target
            if run.target >= begin and run.target not in there:
                if any(
                    other.target == run.target + run.records or other.target + other.records == run.target
                    for other in runs[max(at - 1, 0) : at + 2]
                    if other is not run
                ):
                    raise MirrorError(
                        f"partition {number} of topic {topic.topic} was copied from a log with gaps, in a transaction that was "
                        "repeated: its offsets cannot be told exactly, so it cannot be turned"
                    )
                target = next(self._offsets(self._source, topic, [(number, run.target, end)]), target)
            found.append(run._replace(target=target))
        return found

    def _offsets(
        self, client: ClusterClient, topic: log_pb.Topic, ranges: Sequence[tuple[int, int, int]]
    ) -> Iterator[int]:
        """Offset of the first record in each range of a topic that has one.

        Args:
            ranges: partition, begin and end.
        """
        asked = [
            log_pb.FetchRange(
                topic=topic.topic, partition=number, from_offset=begin, to_offset=end, topic_id=topic.topic_id
            )
            for number, begin, end in ranges
            if begin < end
        ]
        seen: set[int] = set()
        for answer in client.fetch(asked) if asked else ():
            if answer.range in seen:
                continue
            wanted = asked[answer.range]
            for each in take_batches(answer.batches, wanted.from_offset):
                offset = each.sources[0].offset
                if offset < wanted.to_offset:
                    seen.add(answer.range)
                    yield offset
                break
