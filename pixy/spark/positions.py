"""Start and end positions of the options: earliest, latest, an offset or timestamp per partition,
or one timestamp for all.

These are the requested positions; `finder` resolves them to offsets by asking the daemon.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pixy.errors import InvalidArgument
from pixy.records import TopicPartition

EARLIEST = -2
LATEST = -1
"""Kafka's numbers for earliest and latest in JSON offsets."""


class At(Enum):
    """Kinds of position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Position:
    """A start or end position.

    Args:
        at: kind of position.
        option: name of its option, for error texts.
        by_partition: offsets, or timestamps in ms, of exactly the partitions to read. Empty: not by
            partition.
        by_topic: `EARLIEST` or `LATEST` for all partitions of topics that are named as a whole.
        timestamp_ms: timestamp for all partitions, if `at` is TIMESTAMP and `by_partition` is
            empty.
        else_latest: True to treat a timestamp after the last record as latest instead of an error.
    """

    at: At
    option: str
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    by_topic: Mapping[str, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    else_latest: bool = False

    def by_each(self, partitions: Sequence[TopicPartition]) -> "Position":
        """The same position by partition, where topics are named as a whole.

        Raises:
            InvalidArgument: it names a topic without a partition to read.
        """
        whole = {each: self.by_topic[each.topic] for each in partitions if each.topic in self.by_topic}
        unread = sorted(self.by_topic.keys() - {each.topic for each in whole})
        if unread:
            raise InvalidArgument(f"option {self.option} names topic {unread[0]!r}, which is not read")
        return replace(self, by_partition={**self.by_partition, **whole}, by_topic={}) if whole else self


def start_position(given: Mapping[str, str], *, streaming: bool) -> Position:
    """Start position. Timestamps take precedence over offsets, and one for all partitions over one
    for each, as in Kafka's connector.

    Raises:
        InvalidArgument: a value is invalid.
    """
    strategy = given.get("startingOffsetsByTimestampStrategy", "error")
    if strategy not in ("error", "latest"):
        raise InvalidArgument(
            f"option startingOffsetsByTimestampStrategy is {strategy!r}: allowed is error or latest"
        )
    forbidden = {} if streaming else {At.LATEST: LATEST}
    default = At.LATEST if streaming else At.EARLIEST
    return _position(given, "starting", default, forbidden, else_latest=strategy == "latest")


def end_position(given: Mapping[str, str]) -> Position:
    """End position; a timestamp after the last record means latest.

    Raises:
        InvalidArgument: a value is invalid.
    """
    return _position(given, "ending", At.LATEST, {At.EARLIEST: EARLIEST}, else_latest=True)


def check_order(start: Position, end: Position) -> None:
    """Check that the end is not before the start, as far as the options tell.

    Raises:
        InvalidArgument: the end is before the start.
    """
    if start.at is not end.at:
        return
    for each in (*start.by_partition, *end.by_partition, None):
        first, last = _number(start, each), _number(end, each)
        if first is not None and last is not None and 0 <= last < first:
            where = "" if each is None else f" for {each.topic}-{each.partition}"
            raise InvalidArgument(
                f"option {start.option} says {first}{where} and {end.option} {last}: reading must not end before it starts"
            )


def _number(position: Position, partition: TopicPartition | None) -> int | None:
    """Offset or timestamp for a partition; None for the partitions that it does not name."""
    if not position.by_partition:
        return position.timestamp_ms
    return None if partition is None else position.by_partition.get(partition)


def _position(
    given: Mapping[str, str], edge: str, default: At, forbidden: Mapping[At, int], *, else_latest: bool
) -> Position:
    for_all, for_each, offsets = f"{edge}Timestamp", f"{edge}OffsetsByTimestamp", f"{edge}Offsets"
    if for_all in given:
        text = given[for_all]
        if not re.fullmatch(r"\d{1,18}", text):
            raise InvalidArgument(
                f"option {for_all} is {text!r}: allowed are milliseconds since 1970, a whole number"
            )
        return Position(At.TIMESTAMP, for_all, timestamp_ms=int(text), else_latest=else_latest)
    if for_each in given:
        stamps, _ = _by_partition(for_each, given[for_each], least=0, what="timestamps in milliseconds")
        return Position(At.TIMESTAMP, for_each, stamps, else_latest=else_latest)
    text = given.get(offsets, default.value)
    words = [at.value for at in (At.EARLIEST, At.LATEST) if at not in forbidden]
    if text.lower() in words:
        return Position(At(text.lower()), offsets)
    if not text.startswith("{"):
        allowed = f'{" or ".join(words)}, or JSON like {{"topic": {{"0": 12}}}}'
        raise InvalidArgument(f"option {offsets} is {text!r}: allowed is {allowed}")
    by_partition, by_topic = _offsets(offsets, text, forbidden)
    return Position(At.OFFSETS, offsets, by_partition, by_topic)


def _offsets(
    option: str, text: str, forbidden: Mapping[At, int]
) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    what = 'offsets, -2 for earliest, -1 for latest, or {"topic": "earliest"} or "latest" for all partitions'
    by_partition, by_topic = _by_partition(option, text, least=EARLIEST, what=what, words=_WORDS)
    for at, number in forbidden.items():
        if number in by_partition.values() or number in by_topic.values():
            raise InvalidArgument(f"option {option} is {text!r}: {number}, {at.value}, is not allowed there")
    return by_partition, by_topic


_WORDS: Mapping[str, int] = {At.EARLIEST.value: EARLIEST, At.LATEST.value: LATEST}


def _by_partition(
    option: str, text: str, *, least: int, what: str, words: Mapping[str, int] | None = None
) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Numbers by partition, and those of `words` by topic."""
    allowed = f'allowed is JSON like {{"topic": {{"0": 12, "1": 7}}}} with {what}'
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"option {option} is {text!r}: {allowed} ({error})") from None
    if not isinstance(parsed, dict) or not parsed:
        raise InvalidArgument(f"option {option} is {text!r}: {allowed}")
    found: dict[TopicPartition, int] = {}
    whole: dict[str, int] = {}
    for topic, partitions in parsed.items():
        if words and isinstance(partitions, str) and partitions.lower() in words:
            whole[topic] = words[partitions.lower()]
            continue
        if not isinstance(partitions, dict):
            raise InvalidArgument(f"option {option} is {text!r}: {topic!r} has {partitions!r}; {allowed}")
        for partition, number in partitions.items():
            if not re.fullmatch(r"\d{1,9}", partition) or type(number) is not int or number < least:
                raise InvalidArgument(
                    f"option {option} is {text!r}: partition {partition!r} of {topic!r} has {number!r}; {allowed}"
                )
            found[TopicPartition(topic, int(partition))] = number
    return found, whole
