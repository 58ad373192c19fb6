"""Contents of the state topic: how much of each source partition is at the target, and where. Pure.

Each publication has its records and one record of the state topic, so both are there or neither.
It has the partitions that the publication writes to, with what is new of them. Now and then one is
whole: it has everything, and those before it are removed. Many partitions are several records.

The value of a record, JSON:

    version   1
    whole     true: nothing before it counts
    topics    by name: source_id and target_id, hexadecimal, turn, and partitions by number:
                next     the offset of the source to go on at
                records  that were copied so far
                runs     [source, target, records], ...: see `runs`; at the target at least there

A topic whose `source_id` differs from the one before was replaced at the source, and one with
another `turn` has turned its direction: its partitions begin anew.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pixy.errors import CorruptData
from pixy.mirror.runs import Run, add_run, translated
from pixy.records import TopicPartition

_VERSION = 1
_PARTITIONS_PER_RECORD = 64
"""A quarter of a megabyte at most."""


@dataclass(slots=True)
class CopiedPartition:
    """The offset at which a partition goes on, the records that were copied, and their map."""

    next: int
    records: int = 0
    runs: list[Run] = field(default_factory=list)


@dataclass(slots=True)
class TopicPositions:
    """The partitions of a topic.

    Attributes:
        source_id, target_id: of the topic in both clusters.
        turn: how often its direction was turned.
    """

    source_id: bytes
    target_id: bytes
    turn: int = 0
    partitions: dict[int, CopiedPartition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copied:
    """The part of a publication in one partition.

    Attributes:
        next: offset of the source behind it.
        records: number of them.
        runs: their map.
        turn: of the topic.
    """

    partition: TopicPartition
    source_id: bytes
    target_id: bytes
    next: int
    records: int
    runs: tuple[Run, ...]
    turn: int = 0


class Positions:
    """Positions of all topics that were copied ever.

    Attributes:
        topics: by name.
        records: read or added since the last whole one.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicPositions] = {}
        self.records = 0

    def next(self, partition: TopicPartition, source_id: bytes) -> int | None:
        """Offset of the source to go on at; None if nothing of this topic was copied."""
        topic = self.topics.get(partition.topic)
        if topic is None or topic.source_id != source_id:
            return None
        known = topic.partitions.get(partition.partition)
        return None if known is None else known.next

    def translated(self, partition: TopicPartition, source_id: bytes, offset: int) -> int | None:
        """As `runs.translated`."""
        topic = self.topics.get(partition.topic)
        if topic is None or topic.source_id != source_id or partition.partition not in topic.partitions:
            return None
        return translated(topic.partitions[partition.partition].runs, offset)

    def add(self, copied: Iterable[Copied]) -> None:
        """Take what a publication has copied."""
        for each in copied:
            topic = TopicPositions(each.source_id, each.target_id, each.turn)
            partition = CopiedPartition(each.next, each.records, list(each.runs))
            self._take(each.partition.topic, topic, {each.partition.partition: partition})
        self.records += 1

    def read(self, value: bytes) -> None:
        """Take a record of the state topic.

        Raises:
            CorruptData: it is none, or of a later release.
        """
        try:
            record = json.loads(value)
            if record["version"] != _VERSION:
                raise CorruptData(f"the state has version {record['version']}, expected {_VERSION}")
            if record["whole"]:
                self.topics.clear()
                self.records = 0
            for name, topic in record["topics"].items():
                ids = bytes.fromhex(topic["source_id"]), bytes.fromhex(topic["target_id"])
                self._take(
                    name,
                    TopicPositions(*ids, topic["turn"]),
                    {
                        int(number): CopiedPartition(
                            each["next"], each["records"], [Run(*run) for run in each["runs"]]
                        )
                        for number, each in topic["partitions"].items()
                    },
                )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"the state has a record that is none of a mirror: {error!r}") from error
        self.records += 1

    def whole(self, copied: Iterable[Copied]) -> Iterator[bytes]:
        """The values of a whole record, with what a publication has besides."""
        later = Positions()
        for value in _encoded(self.topics, whole=True):
            later.read(value)
        later.add(copied)
        return _encoded(later.topics, whole=True)

    def _take(self, name: str, read: TopicPositions, partitions: Mapping[int, CopiedPartition]) -> None:
        topic = self.topics.get(name)
        if topic is None or (topic.source_id, topic.turn) != (read.source_id, read.turn):
            topic = self.topics[name] = read
        for number, found in partitions.items():
            position = topic.partitions.setdefault(number, CopiedPartition(found.next))
            position.next = found.next
            position.records += found.records
            for run in found.runs:
                add_run(position.runs, run)


def change(copied: Iterable[Copied]) -> Iterator[bytes]:
    """The values of a record that has only what a publication has."""
    positions = Positions()
    positions.add(copied)
    return _encoded(positions.topics, whole=False)


def _encoded(topics: Mapping[str, TopicPositions], *, whole: bool) -> Iterator[bytes]:
    all_of_them = [
        (name, number, topic.partitions[number])
        for name, topic in topics.items()
        for number in sorted(topic.partitions)
    ]
    for at in range(0, max(len(all_of_them), 1), _PARTITIONS_PER_RECORD):
        found: dict[str, Any] = {}
        for name, number, position in all_of_them[at : at + _PARTITIONS_PER_RECORD]:
            topic = topics[name]
            ids = {"source_id": topic.source_id.hex(), "target_id": topic.target_id.hex()}
            written = found.setdefault(name, {**ids, "turn": topic.turn, "partitions": {}})
            written["partitions"][str(number)] = asdict(position)
        record = {"version": _VERSION, "whole": whole and at == 0, "topics": found}
        yield json.dumps(record, separators=(",", ":")).encode()
