"""Model of topics: changes are applied in the order of the requests, possibly without some of the
last ones.

An observer sees the topics after a prefix of the changes. From then on these are applied, even if
unanswered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pixy.cluster import MetadataState
from pixy.errors import InvalidArgument, PixyError, TopicExists, UnknownTopic
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from tests.fakes.clock import FakeClock
from tests.sim.model_partition import PartitionModel


@dataclass(eq=False, slots=True)
class Change:
    """One requested change.

    Attributes:
        what: `create`, `alter` or `delete`.
        partitions: as requested; 0 in an alteration: unchanged.
        config: options to set; a value of None removes the option.
        sent_ms: the true time of the request.
        result: the expected answer, once known: the state of the topic, or the class of an error.
    """

    what: str
    name: str
    partitions: int = 0
    config: Mapping[str, str | None] = field(default_factory=dict)
    sent_ms: int = 0
    result: "_State | type[PixyError] | None" = None


class _State(NamedTuple):
    """A topic after the changes."""

    version: int
    config: Mapping[str, str]
    raft_groups: tuple[int, ...]


@dataclass(slots=True)
class _States:
    """All topics by name, and the raft group of the next partition."""

    topics: dict[str, _State] = field(default_factory=dict)
    next_raft_group: int = FIRST_PARTITION_GROUP

    def copy(self) -> "_States":
        return _States(dict(self.topics), self.next_raft_group)

    def apply(self, change: Change) -> _State | type[PixyError] | None:
        """Apply a change; returns its expected answer."""
        before = self.topics.get(change.name)
        if change.what == "create":
            return TopicExists if before is not None else self._create(change)
        if before is None:
            return UnknownTopic
        if change.what == "delete":
            del self.topics[change.name]
            return None
        return self._alter(change, before)

    def _create(self, change: Change) -> _State:
        config = {name: value for name, value in change.config.items() if value is not None}
        return self._put(change.name, 1, config, self._new_groups(change.partitions))

    def _alter(self, change: Change, before: _State) -> _State | type[PixyError]:
        more = (change.partitions or len(before.raft_groups)) - len(before.raft_groups)
        if more < 0:
            return InvalidArgument
        config = dict(before.config)
        for name, value in change.config.items():
            config.pop(name, None)
            if value is not None:
                config[name] = value
        if not more and config == before.config:
            return before
        return self._put(change.name, before.version + 1, config, before.raft_groups + self._new_groups(more))

    def _put(
        self, name: str, version: int, config: Mapping[str, str], raft_groups: tuple[int, ...]
    ) -> _State:
        state = self.topics[name] = _State(version, config, raft_groups)
        return state

    def _new_groups(self, count: int) -> tuple[int, ...]:
        first = self.next_raft_group
        self.next_raft_group += count
        return tuple(range(first, self.next_raft_group))


class Config(NamedTuple):
    """Options of a topic, and the time in which they may have applied; None: they still do."""

    options: Mapping[str, str]
    from_ms: int
    until_ms: int | None = None


@dataclass(eq=False, slots=True)
class TopicModel:
    """One topic, from its creation to its deletion.

    Attributes:
        topic_id: empty until known.
        configs: all its options so far, oldest first.
    """

    name: str
    state: _State
    topic_id: bytes = b""
    partitions: list[PartitionModel] = field(default_factory=list)
    configs: list[Config] = field(default_factory=list)
    deleted: bool = False


class TopicsModel:
    """All topics.

    Args:
        clock: the simulated clock.

    Attributes:
        live: topics by name, as last seen.
        deleted: topics whose deletion was seen since the last start.
        pending: changes requested and not seen, oldest first.
        unanswered: number of changes without an answer.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.live: dict[str, TopicModel] = {}
        self.deleted: list[TopicModel] = []
        self.pending: list[Change] = []
        self.unanswered = 0
        self._states = _States()
        # All topics ever seen, by id.
        self._topic_ids: dict[bytes, TopicModel] = {}

    def send(self, change: Change) -> None:
        """Record a requested change."""
        change.sent_ms = self._clock.true_ms()
        self.pending.append(change)
        self.unanswered += 1

    def is_creating(self, name: str) -> bool:
        """True if a creation of a topic may be under way."""
        return any(change.what == "create" and change.name == name for change in self.pending)

    def take_back(self, change: Change) -> None:
        """Remove a rejected change, which must not be applied."""
        assert self.pending.pop() is change
        self.unanswered -= 1

    def answer(self, change: Change, error: PixyError | None) -> None:
        """Record an answered change: it and all before it are applied."""
        if change in self.pending:
            self._advance(self.pending.index(change) + 1)
        self.unanswered -= 1
        expected = change.result
        if isinstance(expected, type):
            assert type(error) is expected, f"{change} is answered with {error!r}"
        else:
            assert error is None, f"{change} is answered with {error!r}"

    def see(self, metadata: MetadataState) -> None:
        """Raise AssertionError if the requested changes cannot have led to these topics."""
        states = self._states.copy()
        found = _States(
            {
                name: _State(topic.version, topic.config, topic.raft_groups)
                for name, topic in metadata.topics.items()
            },
            metadata.next_raft_group,
        )
        for count in range(len(self.pending) + 1):
            if states == found:
                self._advance(count)
                break
            if count < len(self.pending):
                states.apply(self.pending[count])
        else:
            changes = [
                (change.what, change.name, change.partitions, change.config) for change in self.pending
            ]
            raise AssertionError(f"from {self._states} no part of {changes} leads to {found}")
        for name, topic in metadata.topics.items():
            self._identify(self.live[name], topic.topic_id)

    def adopt(self, metadata: MetadataState) -> None:
        """Adopt the topics after a start, and forget other requests."""
        self.see(metadata)
        self.pending = []
        self.deleted = []
        self.unanswered = 0

    def by_id(self, topic_id: bytes) -> TopicModel:
        """A topic seen so far."""
        return self._topic_ids[topic_id]

    def _advance(self, count: int) -> None:
        """Apply the first pending changes."""
        for change in self.pending[:count]:
            change.result = self._states.apply(change)
            self._follow(change, self._states.topics.get(change.name))
        del self.pending[:count]

    def _follow(self, change: Change, state: _State | None) -> None:
        name = change.name
        topic = self.live.get(name)
        if topic is not None and state is None:
            topic.deleted = True
            self.deleted.append(self.live.pop(name))
        if state is not None:
            if topic is None:
                topic = self.live[name] = TopicModel(name, state)
            if not topic.configs or topic.state.config != state.config:
                if topic.configs:
                    topic.configs[-1] = topic.configs[-1]._replace(until_ms=self._clock.true_ms())
                topic.configs.append(Config(state.config, change.sent_ms))
            topic.state = state
            while len(topic.partitions) < len(state.raft_groups):
                topic.partitions.append(PartitionModel())

    def _identify(self, topic: TopicModel, topic_id: bytes) -> None:
        if not topic.topic_id:
            assert topic_id not in self._topic_ids, f"topic {topic.name} has the id of another topic"
            topic.topic_id = topic_id
            self._topic_ids[topic_id] = topic
        assert topic.topic_id == topic_id, f"topic {topic.name} has another id"
