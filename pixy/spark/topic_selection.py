"""Topics and partitions to read: exactly one of the options `subscribe`, `subscribePattern` and
`assign`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pixy.errors import InvalidArgument, InvalidTopic
from pixy.records import TopicPartition, check_topic_name

_OPTIONS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics and partitions to read.

    Args:
        topics: names; empty for a pattern.
        pattern: a regular expression for whole names; empty for none.
        assigned: the partitions of the topics, if they are named.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def partitions(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        """The existing partitions, sorted; `counts` has the number of partitions of each existing
        topic.
        """
        if self.assigned:
            return sorted(
                TopicPartition(topic, partition)
                for topic, chosen in self.assigned.items()
                for partition in chosen
                if partition < counts.get(topic, 0)
            )
        if self.pattern:
            matches = re.compile(self.pattern).fullmatch
            chosen_topics = [topic for topic in counts if matches(topic)]
        else:
            chosen_topics = [topic for topic in self.topics if topic in counts]
        return sorted(
            TopicPartition(topic, partition) for topic in chosen_topics for partition in range(counts[topic])
        )

    def selects(self, partition: TopicPartition) -> bool:
        """True if the options name a partition, whether it exists or not."""
        if self.assigned:
            return partition.partition in self.assigned.get(partition.topic, ())
        if self.pattern:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition.topic in self.topics

    def check_exists(self, counts: Mapping[str, int]) -> None:
        """Check that named topics and partitions exist. A pattern names none.

        Raises:
            InvalidArgument: a topic or partition does not exist.
        """
        for topic in self.topics:
            if topic not in counts:
                raise InvalidArgument(
                    f"topic {topic!r} does not exist; create it, or write to it, before it is read"
                )
        for topic, chosen in self.assigned.items():
            if max(chosen) >= counts[topic]:
                raise InvalidArgument(
                    f"option assign names partition {max(chosen)} of topic {topic!r}, which has {counts[topic]}"
                )


def parse_topic_selection(given: Mapping[str, str]) -> TopicSelection:
    """Parses the options.

    Raises:
        InvalidArgument: not exactly one of them is given, or its value is invalid.
    """
    named = [name for name in _OPTIONS if name in given]
    if len(named) != 1:
        found = " and ".join(f"{name}={given[name]!r}" for name in named) or "none of them"
        raise InvalidArgument(f"exactly one of the options {', '.join(_OPTIONS)} is needed, found {found}")
    name, value = named[0], given[named[0]]
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise InvalidArgument(
                f"option subscribePattern is {value!r}: it is not a regular expression: {error}"
            ) from None
        return TopicSelection(pattern=value)
    if name == "assign":
        assigned = _parse_assign(value)
        return TopicSelection(topics=tuple(sorted(assigned)), assigned=assigned)
    topics = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    for topic in topics:
        _check_name(topic, "subscribe", value)
    return TopicSelection(topics=topics)


def _parse_assign(value: str) -> dict[str, tuple[int, ...]]:
    allowed = 'allowed is JSON like {"topic": [0, 1]}, with whole numbers from 0 on'
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"option assign is {value!r}: {allowed} ({error})") from None
    if not isinstance(parsed, dict) or not parsed:
        raise InvalidArgument(f"option assign is {value!r}: {allowed}")
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parsed.items():
        _check_name(topic, "assign", value)
        whole = isinstance(partitions, list) and all(type(each) is int and each >= 0 for each in partitions)
        if not whole or not partitions:
            raise InvalidArgument(f"option assign is {value!r}: {topic!r} has {partitions!r}; {allowed}")
        assigned[topic] = tuple(sorted(set(partitions)))
    return assigned


def _check_name(topic: str, option: str, value: str) -> None:
    try:
        check_topic_name(topic)
    except InvalidTopic as error:
        raise InvalidArgument(f"option {option} is {value!r}: {error}") from None
