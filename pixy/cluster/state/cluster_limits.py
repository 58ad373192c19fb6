"""Limits of what a cluster keeps: topics, partitions, consumer groups.

Each is judged when the command that adds something is applied: by then everything before it counts,
so commands that are under way together cannot pass a limit. The limit travels in the command,
because nodes may be configured differently, and only once every node knows the field. What is
beyond a limit already stays. Offsets that a client sets are judged before they are proposed, too:
what is refused is no entry. In a command that another node proposes, the leader's own limits count
as well.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import Message

from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.metadata import MetadataState
from pixy.cluster.state.nodes import LIMITS_LEVEL
from pixy.config import LimitsConfig
from pixy.errors import PixyError
from pixy.proto.state_pb2 import (
    AlterTopic,
    CommitOffsets,
    CreateTopic,
    GroupsCommand,
    JoinGroup,
    MetadataCommand,
    SetClassicGroup,
)

_PARTITIONS_MAX_ALONE = 10_000
_PARTITIONS_MAX = 1000
"""Default with several nodes; see `docs/security.md` for the measurement."""


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The limits of one cluster as its node is configured.

    Attributes:
        config: the section `limits`.
        metadata: the cluster.
        feature_level: newest commands that every node knows which applies them.
    """

    config: LimitsConfig
    metadata: MetadataState = field(repr=False)
    feature_level: Callable[[], int] = field(repr=False)

    @property
    def max_partitions(self) -> int:
        """Partitions that the cluster may have at present."""
        alone = len(self.metadata.started) == 1
        return self.config.max_partitions or (_PARTITIONS_MAX_ALONE if alone else _PARTITIONS_MAX)

    def judge(self, command: MetadataCommand) -> PixyError | None:
        """Reason to refuse a command for a topic before it is proposed, as far as is known here."""
        match command.WhichOneof("command"):
            case "create_topic":
                create = command.create_topic
                if create.name in self.metadata.topics:
                    return None
                return self.metadata.exceeded(
                    1, create.partitions, self.config.max_topics, self.max_partitions
                )
            case "alter_topic":
                alter = command.alter_topic
                topic = self.metadata.topics.get(alter.name)
                added = 0 if topic is None else alter.partitions - len(topic.raft_groups)
                return self.metadata.exceeded(0, added, 0, self.max_partitions)
            case _:
                return None

    def limit(self, command: MetadataCommand) -> None:
        """Add the limits to a command for a topic, if every node knows them."""
        if not self._are_known:
            return
        match command.WhichOneof("command"):
            case "create_topic":
                command.create_topic.max_topics = self.config.max_topics
                command.create_topic.max_partitions = self.max_partitions
            case "alter_topic":
                command.alter_topic.max_partitions = self.max_partitions

    def limit_group(self, command: JoinGroup | CommitOffsets | SetClassicGroup) -> None:
        """Add the limit to a command that may be for a new consumer group, if every node knows
        it; to what is stored of a classic one that of its memory, too.
        """
        if self._are_known:
            command.max_groups = self._max_groups
            if isinstance(command, SetClassicGroup):
                command.max_offset_bytes = self._max_offset_bytes

    def limit_offsets(self, command: CommitOffsets, state: GroupsState) -> None:
        """Judge offsets that a client sets, or at which a consumer group begins, before they are
        proposed, and add the limit as `limit_group`. Later commits replace them.

        Raises:
            ResourceExhausted: they take too much memory.
        """
        allowed = self._max_offset_bytes
        exceeded = state.exceeded_bytes(command.group, state.growth(command), allowed)
        if exceeded is not None:
            raise exceeded
        if self._are_known:
            command.max_offset_bytes = allowed

    def lower(self, command: MetadataCommand | GroupsCommand) -> bool:
        """Lower the limits in a command of another node to those of this one; true if one was
        above.
        """
        lowered = False
        if self._are_known:
            match getattr(command, command.WhichOneof("command") or "", None):
                case CreateTopic() as create:
                    lowered = _lower(create, "max_topics", self.config.max_topics)
                    lowered |= _lower(create, "max_partitions", self.max_partitions)
                case AlterTopic() as alter:
                    lowered = _lower(alter, "max_partitions", self.max_partitions)
                case JoinGroup() as join:
                    lowered = _lower(join, "max_groups", self._max_groups)
                case CommitOffsets() as commit:
                    lowered = _lower(commit, "max_groups", self._max_groups)
                    # Acks grow a little, and are not refused because of what others have set.
                    allowed = self._max_offset_bytes * (1 if commit.max_offset_bytes else 2)
                    lowered |= _lower(commit, "max_offset_bytes", allowed)
        return lowered

    @property
    def _max_groups(self) -> int:
        """Consumer groups of one state group."""
        return -(-self.config.max_groups // max(1, self.metadata.groups_count))

    @property
    def _max_offset_bytes(self) -> int:
        """Memory of the committed offsets of one state group."""
        return self.config.max_offsets_bytes // max(1, self.metadata.groups_count)

    @property
    def _are_known(self) -> bool:
        return len(self.metadata.registered) == 1 or self.feature_level() >= LIMITS_LEVEL


def _lower(command: Message, limit: str, allowed: int) -> bool:
    """Lower a limit to what is allowed, where 0 is none; true if it was above."""
    if not allowed or 0 < getattr(command, limit) <= allowed:
        return False
    setattr(command, limit, allowed)
    return True
