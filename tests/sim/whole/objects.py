"""Sequential models of what calls change and read: topics by name, and the committed offsets of a
consumer group in a topic. See `linearizability`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.sim.whole.linearizability import UNKNOWN


class TopicState(NamedTuple):
    """A topic that exists.

    Attributes:
        topic_id: empty while nobody has seen it.
        config: sorted.
    """

    topic_id: bytes
    version: int
    partitions: int
    config: tuple[tuple[str, str], ...]


class Create(NamedTuple):
    """Its output is a `TopicState`, or the name of an error."""

    partitions: int
    config: tuple[tuple[str, str], ...]


class Alter(NamedTuple):
    """Its output is a `TopicState`, or the name of an error. No partitions: unchanged. An option of
    None is removed.
    """

    partitions: int
    config: tuple[tuple[str, str | None], ...]


class Delete(NamedTuple):
    """Its output is empty, or the name of an error."""


class Read(NamedTuple):
    """Its output is the state."""


class Use(NamedTuple):
    """A call on a partition that was refused because there is no such partition, or a record of it
    that was acknowledged.
    """

    partition: int


ACKNOWLEDGED = "acknowledged"
"""Output of the use of a partition that is there."""

DELETED_MEANWHILE = "deleted meanwhile"
"""Output of a call that had an effect, and found the topic deleted behind it."""


def step_topic(state: TopicState | None, input: Any, output: Any) -> Sequence[TopicState | None]:
    """States of a topic behind a call; None: there is no such topic."""
    match input:
        case Create():
            return _create(state, input, output)
        case Alter():
            return _alter(state, input, output)
        case Delete():
            return _delete(state, output)
        case Read():
            return _read(state, output)
        case Use(partition):
            known = state is not None and partition < state.partitions
            return [state] if known is (output == ACKNOWLEDGED) else []
    raise AssertionError(f"unknown input {input}")


def _delete(state: TopicState | None, output: Any) -> Sequence[TopicState | None]:
    if output == DELETED_MEANWHILE:
        return [state]  # another topic has the name
    if state is None:
        return [None] if output == "UnknownTopic" else []
    return [None] if output in ("", UNKNOWN) else []


def _create(state: TopicState | None, input: Create, output: Any) -> Sequence[TopicState | None]:
    if state is not None:
        return [state] if output == "TopicExists" else []
    made = TopicState(b"", 1, input.partitions, input.config)
    return _changed(made, output)


def _alter(state: TopicState | None, input: Alter, output: Any) -> Sequence[TopicState | None]:
    if state is None:
        return [None] if output == "UnknownTopic" else []
    if output == "StaleTopicVersion":  # another one at the same time
        return [state]
    partitions = input.partitions or state.partitions
    if partitions < state.partitions:
        return [state] if output == "InvalidArgument" else []
    config = dict(state.config)
    for name, value in input.config:
        config.pop(name, None)
        if value is not None:
            config[name] = value
    altered = state._replace(partitions=partitions, config=tuple(sorted(config.items())))
    if altered != state:
        altered = altered._replace(version=state.version + 1)
    return _changed(altered, output)


def _changed(state: TopicState, output: Any) -> Sequence[TopicState | None]:
    """States behind a change. Its answer shows the state at the time of the answer, if the change
    was found to be there when it was tried again.
    """
    if output is UNKNOWN or output == DELETED_MEANWHILE:
        return [state]
    if not isinstance(output, TopicState):
        return []
    if output.version > state.version:
        return [state]
    return _read(state, output)


def _read(state: TopicState | None, output: Any) -> Sequence[TopicState | None]:
    if output is UNKNOWN:
        return [state]
    if state is None or output is None:
        return [state] if state is output else []
    if not state.topic_id:
        state = state._replace(topic_id=output.topic_id)
    return [state] if state == output else []


class Commit(NamedTuple):
    """Offsets to commit, by partition. Its output is empty."""

    offsets: tuple[tuple[int, Any], ...]


Offsets = tuple[tuple[int, Any], ...]


def step_offsets(state: Offsets, input: Any, output: Any) -> Sequence[Offsets]:
    """Committed offsets of a group in a topic behind a call."""
    if isinstance(input, Commit):
        merged: Mapping[int, Any] = {**dict(state), **dict(input.offsets)}
        return [tuple(sorted(merged.items()))]
    assert isinstance(input, Read)
    return [state] if output in (state, UNKNOWN) else []
