"""Groups of Kafka's classic protocol, and offsets of Kafka clients, as the layers above see them.

Answers are Kafka's codes, and nothing is raised: each belongs to one request, one member or one
partition. A node answers for the groups that it coordinates, see `coordinator_of`, and all others
with NOT_COORDINATOR.

Offsets are those of pixy's own consumer groups. Their metadata is shown as it is, and of two kinds:
pixy's own is sparse acks, that of Kafka clients is never read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pixy.classic_groups import (
    GroupCode,
    GroupJoin,
    GroupSync,
    Joined,
    LeavingMember,
    StoredClassicMember,
    Synced,
)
from pixy.records import OffsetCommit, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """OffsetCommit.

    Attributes:
        member_id, instance_id, generation: of a member; "", None and -1 for a client that is none.
        offsets: with metadata, by partition.
        names_unknown: the client knows the code GROUP_ID_NOT_FOUND, version 9 and above.
    """

    member_id: str
    instance_id: str | None
    generation: int
    offsets: Mapping[TopicPartition, tuple[int, str]]
    names_unknown: bool = True


class GroupListing(NamedTuple):
    """One group in a list.

    `protocol_type`: "" if it only has offsets. `is_classic`: False for pixy's own consumers.
    """

    group: str
    protocol_type: str
    phase: str
    is_classic: bool


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group.

    Attributes:
        code: NONE, or why it is not described.
        phase: Kafka's name of its state; "Dead" of an unknown group.
        members: with metadata and assignments in the phase "Stable" alone.
    """

    group: str
    code: GroupCode = GroupCode.NONE
    phase: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[StoredClassicMember] = field(default=())
    is_known: bool = True


class ClassicGroups(Protocol):
    """Groups of Kafka clients in one cluster."""

    def begin_drain(self) -> None:
        """Keep no member waiting any more, and let none come. Offsets are still taken."""

    def coordinator_of(self, group: str) -> int | None:
        """The node that coordinates a group, None while there is none."""

    async def join(self, group: str, join: GroupJoin) -> Joined:
        """JoinGroup. Waits for the rebalance; may be cancelled when the client is gone."""

    async def sync(self, group: str, sync: GroupSync) -> Synced:
        """SyncGroup. Waits for the leader of the group; may be cancelled as `join`."""

    async def heartbeat(
        self, group: str, member_id: str, instance_id: str | None, generation: int
    ) -> GroupCode:
        """Heartbeat."""

    async def leave(
        self, group: str, leaving: Sequence[LeavingMember]
    ) -> tuple[GroupCode, Sequence[GroupCode]]:
        """LeaveGroup: a code for the request, and one for each member."""

    async def commit(self, group: str, commit: GroupCommit) -> Mapping[TopicPartition, GroupCode]:
        """OffsetCommit; a code for each partition. Durable on return."""

    async def committed(
        self, group: str, partitions: Mapping[str, Collection[int]] | None
    ) -> tuple[GroupCode, Mapping[TopicPartition, OffsetCommit]]:
        """OffsetFetch: the offsets of some partitions, or with None of all; those without one are
        missing.
        """

    async def delete_offsets(
        self, group: str, partitions: Mapping[str, Collection[int]]
    ) -> tuple[GroupCode, Mapping[TopicPartition, GroupCode]]:
        """OffsetDelete: a code for the request, and one for each partition."""

    async def list_groups(self) -> Sequence[GroupListing]:
        """ListGroups: those that this node coordinates, pixy's own among them."""

    async def describe(self, group: str) -> GroupDescription:
        """DescribeGroups."""

    async def delete(self, group: str) -> GroupCode:
        """DeleteGroups."""
