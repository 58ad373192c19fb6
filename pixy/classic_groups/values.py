"""Requests to a classic consumer group, its answers, and what is stored of it.

Times are milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pixy.classic_groups.codes import GroupCode


class MemberProtocol(NamedTuple):
    """A way to assign partitions that a member knows, and its subscription in that way's terms."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class GroupJoin:
    """JoinGroup.

    Attributes:
        member_id: "" for a member that has no id yet.
        instance_id: of a static member (KIP-345), else None.
        protocols: in the order of the member's preference.
        rebalance_timeout_ms: None in version 0, which has none: the session timeout counts.
        takes_member_id: the client joins again with the id that it is given (KIP-394), version 4
            and above.
        skips_assignment: a leader can be told not to assign (KIP-814), version 9 and above.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Sequence[MemberProtocol]
    session_timeout_ms: int
    rebalance_timeout_ms: int | None
    takes_member_id: bool = True
    skips_assignment: bool = True


class SeenMember(NamedTuple):
    """A member with its subscription, as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """Answer of a join; `members` is for the leader alone."""

    code: GroupCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[SeenMember] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class GroupSync:
    """SyncGroup.

    Attributes:
        protocol_type, protocol: what the member takes for selected; None in versions that do not
            say (below 5).
        assignments: by member id, from the leader.
    """

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Sequence[tuple[str, bytes]] = ()
    protocol_type: str | None = None
    protocol: str | None = None


class Synced(NamedTuple):
    """Answer of a sync."""

    code: GroupCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class LeavingMember(NamedTuple):
    """A member that leaves, or with "" as its id one that an operator removes by its instance."""

    member_id: str
    instance_id: str | None


class StoredClassicMember(NamedTuple):
    """A member, with its subscription in the terms of the selected protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes


class StoredClassicGroup(NamedTuple):
    """A group in a generation; without members it is empty, and only counts on.

    `is_assigned`: the leader has assigned the partitions of this generation.
    """

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    is_assigned: bool
    members: Sequence[StoredClassicMember]


class GroupOutput(NamedTuple):
    """Work outside of a group.

    Attributes:
        writes: to be stored in this order, each answered by `ClassicGroup.written`.
        answers: of parked requests, by their tickets.
    """

    writes: Sequence[tuple[int, StoredClassicGroup]]
    answers: Sequence[tuple[int, Joined | Synced]]


@dataclass(frozen=True, slots=True)
class ClassicOptions:
    """Limits and times of classic groups.

    Attributes:
        members_max: members of a group.
        member_bytes_max: names and metadata of one member.
        group_bytes_max: the same and the assignments of all members: what one command stores.
        initial_delay_ms: wait for further members of an empty group.
        session_min_ms, session_max_ms: session timeouts that members may have.
        first_join_max_ms: longest wait of a new member for its first answer.
    """

    members_max: int = 1000
    member_bytes_max: int = 256 << 10
    group_bytes_max: int = 4 << 20
    initial_delay_ms: int = 3000
    session_min_ms: int = 6000
    session_max_ms: int = 1_800_000
    first_join_max_ms: int = 300_000
