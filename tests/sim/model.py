"""What a log must hold after everything that was sent to it: the plainest description there is.

Between two ends of a process, of what was sent and not acknowledged any beginning may be there. Once a start has shown what is
there, it stays: a reader may have seen it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pixy.records import OffsetCommit, TopicPartition

__all__ = ["Found", "Model", "Sent"]


class Sent(NamedTuple):
    """One record."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Found(NamedTuple):
    """What a started log shows: topic ids and numbers of partitions, every record, every committed offset.

    `damaged` has the partitions that were refused, with as many records as were read before.
    """

    topics: Mapping[str, tuple[bytes, int]]
    records: Mapping[TopicPartition, Sequence[Sent]]
    committed: Mapping[tuple[str, TopicPartition], OffsetCommit]
    damaged: frozenset[TopicPartition] = frozenset()


@dataclass(slots=True)
class _Partition:
    """Batches as they were sent, and how many of them are acknowledged."""

    batches: list[list[Sent]] = field(default_factory=list)
    acknowledged: int = 0
    end: int = 0

    def records(self, batches: int) -> list[Sent]:
        return [record for batch in self.batches[:batches] for record in batch]


@dataclass(slots=True)
class Model:
    """Everything that was sent, and how far it is acknowledged.

    Attributes:
        topics: acknowledged topics, by name: id and number of partitions.
        asked: topics that may or may not exist, with their number of partitions.
        committed: for each consumer group and partition the acknowledged offset, then those that were sent after it.
    """

    topics: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    partitions: dict[TopicPartition, _Partition] = field(default_factory=dict)
    committed: dict[tuple[str, TopicPartition], list[OffsetCommit | None]] = field(default_factory=dict)

    # --- what was sent ------------------------------------------------------------------------------------------

    def send_topic(self, name: str, partitions: int) -> None:
        self.asked[name] = partitions

    def topic_created(self, name: str, topic_id: bytes, partitions: int) -> None:
        assert self.asked.pop(name) == partitions
        self.topics[name] = (topic_id, partitions)
        for number in range(partitions):
            self.partitions[TopicPartition(name, number)] = _Partition()

    def send(self, partition: TopicPartition, batch: list[Sent]) -> tuple[int, int]:
        """Note a batch; returns its number and the offset that it must get."""
        of = self.partitions[partition]
        of.batches.append(batch)
        of.end += len(batch)
        return len(of.batches) - 1, of.end - len(batch)

    def take_back(self, partition: TopicPartition) -> None:
        """The newest batch was refused: it must not appear."""
        of = self.partitions[partition]
        of.end -= len(of.batches.pop())

    def acknowledge(self, partition: TopicPartition, number: int) -> None:
        of = self.partitions[partition]
        assert of.acknowledged == number, (
            f"batch {number} of {partition} is answered, {of.acknowledged} is due"
        )
        of.acknowledged += 1

    def send_commit(self, group: str, partition: TopicPartition, commit: OffsetCommit) -> None:
        self.committed.setdefault((group, partition), [None]).append(commit)

    def take_back_commit(self, group: str, partition: TopicPartition, commit: OffsetCommit) -> None:
        self.committed[group, partition].remove(commit)

    def commit_acknowledged(self, group: str, partition: TopicPartition, commit: OffsetCommit) -> None:
        commits = self.committed[group, partition]
        assert commit in commits, f"{commit} of {group} is answered after a later one"
        del commits[: commits.index(commit)]

    @property
    def outstanding(self) -> str:
        """What is not answered, empty if nothing."""
        parts = [
            str(partition) for partition, of in self.partitions.items() if of.acknowledged < len(of.batches)
        ]
        parts += [str(key) for key, commits in self.committed.items() if len(commits) > 1]
        return ", ".join([*parts, *self.asked])

    # --- what is found ------------------------------------------------------------------------------------------

    def promised(self) -> dict[TopicPartition, int]:
        """How many batches of each partition are acknowledged: what whoever begins to read must find."""
        return {partition: of.acknowledged for partition, of in self.partitions.items()}

    def check(self, found: Found, promised: Mapping[TopicPartition, int]) -> None:
        """Raise AssertionError if a log that shows this has lost, invented or changed anything.

        Args:
            promised: what was acknowledged when the reading began.
        """
        self._check_topics(found)
        for partition, batches in promised.items():
            of = self.partitions[partition]
            records = list(found.records[partition])
            acknowledged = of.records(batches)
            if partition in found.damaged:
                assert records == of.records(len(of.batches))[: len(records)], f"{partition}: wrong records"
                continue
            assert records[: len(acknowledged)] == acknowledged, (
                f"{partition}: {len(acknowledged)} records were acknowledged, {len(records)} are there, "
                f"the first wrong one is {_first_difference(records, acknowledged)}"
            )
            self._check_unacknowledged(partition, records)
        for key, commits in self.committed.items():
            assert found.committed.get(key) in commits, f"{key}: {found.committed.get(key)} not in {commits}"
        for key in found.committed:
            assert key in self.committed, f"{key} was never committed"

    def adopt(self, found: Found) -> None:
        """From here on, what is there was acknowledged, and nothing else was sent."""
        for name, partitions in list(self.asked.items()):
            if name in found.topics:
                self.topic_created(name, found.topics[name][0], partitions)
        self.asked.clear()
        for partition, of in self.partitions.items():
            count, at = len(found.records.get(partition, ())), 0
            kept = 0
            while at < count:
                at += len(of.batches[kept])
                kept += 1
            del of.batches[kept:]
            of.acknowledged, of.end = kept, at
        for key in self.committed:
            self.committed[key] = [found.committed.get(key)]

    def _check_topics(self, found: Found) -> None:
        for name, topic in self.topics.items():
            assert found.topics.get(name) == topic, (
                f"topic {name}: {found.topics.get(name)}, created as {topic}"
            )
        for name, (_, partitions) in found.topics.items():
            if name not in self.topics:
                assert self.asked.get(name) == partitions, f"topic {name} was never created"
                assert not any(found.records.get(TopicPartition(name, at)) for at in range(partitions)), name
        ids = [topic_id for topic_id, _ in found.topics.values()]
        assert len(ids) == len(set(ids)), "two topics have one id"

    def _check_unacknowledged(self, partition: TopicPartition, records: list[Sent]) -> None:
        of = self.partitions[partition]
        sent: list[Sent] = []
        for batch in of.batches:
            if len(sent) >= len(records):
                break
            sent += batch
        assert records == sent, (
            f"{partition}: {len(records)} records are there, no whole batches of those sent; "
            f"the first wrong one is {_first_difference(records, sent)}"
        )


def _first_difference(found: list[Sent], expected: list[Sent]) -> int:
    for at, (left, right) in enumerate(zip(found, expected, strict=False)):
        if left != right:
            return at
    return min(len(found), len(expected))
