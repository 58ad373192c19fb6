"""Status of a cluster as one node sees it. `status_problems` and `stop_checks` judge it.

Pure. A node knows from its own connections which nodes are up, from its raft groups their
configurations, and of the groups that it leads how far each member is; and of partitions that move
here how far their copies are. `merged` puts together what all nodes know: the members of each group
are taken from its leader.

A node that is removed leaves its raft groups one after the other. It is needed, and listed, as long
as one of them has it as a member.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from pixy.cluster.replicas import CLOCK_OFF_MS
from pixy.raft.quorum import is_majority
from pixy.records import TopicPartition

CAUGHT_UP_ENTRIES = 1000
"""Entries that a member may lack and still count as caught up: some are always on their way."""


class MemberState(StrEnum):
    """Replication to a member of a raft group, as its leader sees it."""

    LEADER = "leader"
    """It leads."""
    REPLICATING = "replicating"
    """It gets entries as they come."""
    PROBING = "probing"
    """The leader looks for the last entry that both have, or gets no answers."""
    CHECKPOINT = "checkpoint"
    """It fetches a checkpoint, because the leader's journal does not go back far enough."""
    COPY = "copy"
    """The same of a partition: it waits for a copy of the partition's files."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member of a raft group.

    Attributes:
        match: newest entry that it is known to have.
        behind: entries of the leader that it is not known to have.
    """

    node_id: int
    match: int
    behind: int
    state: MemberState

    @property
    def caught_up(self) -> bool:
        """True if it can confirm the next entry soon."""
        replicates = self.state in (MemberState.LEADER, MemberState.REPLICATING)
        return replicates and self.behind <= CAUGHT_UP_ENTRIES


class DamagedReplica(NamedTuple):
    """A replica of a partition that serves nothing, with the damage that its node has found."""

    node_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RaftGroupStatus:
    """A raft group.

    Attributes:
        raft_group: its id.
        name: of its state machine, or topic and partition.
        leader: node id, 0 while there is none.
        term: as far as the reporting node knows.
        voters, learners: node ids.
        voters_outgoing: the voters before, while the configuration is joint, else empty.
        members: as the leader sees them; empty if it has not told.
        damaged: replicas whose nodes have found damage, by node.
    """

    raft_group: int
    name: str
    leader: int
    term: int
    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    members: tuple[MemberStatus, ...] = ()
    damaged: tuple[DamagedReplica, ...] = ()

    def has(self, node_id: int) -> bool:
        """True if a node is a member."""
        return node_id in (*self.voters, *self.learners, *self.voters_outgoing)


class CopyStatus(NamedTuple):
    """A copy of a partition that a node fetches.

    Attributes:
        copied_bytes, total_bytes: see `CopyProgress`.
        bytes_per_second: over the last seconds.
        waits: reason why it does not fetch, empty if it does.
    """

    node_id: int
    copied_bytes: int = 0
    total_bytes: int = 0
    bytes_per_second: int = 0
    waits: str = ""


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """A partition that moves, as metadata has it, and what nodes tell of it.

    Attributes:
        reason: see `reason_name`.
        replicas, target: nodes that serve it, and those that are to.
        waits: reason why its leader changes nothing, empty if it does.
        copies: by the nodes that fetch them.
    """

    raft_group: int
    partition: TopicPartition
    reason: str
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    waits: str = ""
    copies: tuple[CopyStatus, ...] = ()

    @property
    def name(self) -> str:
        """Topic and partition."""
        return "{}-{}".format(*self.partition)


class DiskSpace(NamedTuple):
    """Size of a file system, and what is free there; 0 if unknown."""

    total_bytes: int = 0
    free_bytes: int = 0


_UNKNOWN_DISK = DiskSpace()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node of the cluster.

    Attributes:
        address, grpc_address: for nodes and for clients, as "host:port".
        incarnation: number of its newest start.
        up: it can be reached, over a connection or through another node; always true of the
            reporting node.
        is_self: it is the reporting node.
        heard_s: seconds since it was last heard of; None if never since the reporting node started.
        clock_offset_ms: its clock minus the time that a majority of the nodes agrees on; minus the
            clock of the reporting node while there is none.
        problem: reason why it is refused, cannot be reached, or writes no messages; empty for none.
        through: the node through which it is reached, 0 for a connection or none.
        removed: it was removed from the cluster.
        max_message_bytes: its `producer.max_message_bytes`, 0 if it has not told.
        troubles: what it knows to be wrong with itself beside `problem`, such as a disk that gets
            full.
        disk: with its data.
        draining: it gives its replicas to others.
        replicas: that it has, or is to have, once all moves have ended.
        kept: those of them on a drained node that no other node can take.
    """

    node_id: int
    address: str
    grpc_address: str = ""
    rack: str = ""
    version: str = ""
    incarnation: int = 0
    up: bool = True
    is_self: bool = False
    heard_s: float | None = None
    clock_offset_ms: int = 0
    problem: str = ""
    through: int = 0
    removed: bool = False
    max_message_bytes: int = 0
    troubles: tuple[str, ...] = ()
    disk: DiskSpace = _UNKNOWN_DISK
    draining: bool = False
    replicas: int = 0
    kept: int = 0

    @property
    def has_wrong_clock(self) -> bool:
        """Its clock is known to be off; always False of a node that is not up."""
        return self.up and abs(self.clock_offset_ms) > CLOCK_OFF_MS


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster.

    Attributes:
        cluster_id: empty before it is formed.
        nodes: by id; of those that were removed the members of raft groups, and the reporting node.
        groups: its raft groups, by id.
        under_replicated: topics with fewer replicas than their `replication` and the number of
            nodes allow.
        not_ready: reason why the reporting node serves nothing yet; empty if it serves.
        cut_links: pairs of nodes that reach each other only through others.
        can_move: replicas can move: all nodes know that.
        moves: partitions that move.
    """

    cluster_id: bytes
    nodes: tuple[NodeStatus, ...]
    groups: tuple[RaftGroupStatus, ...]
    under_replicated: tuple[str, ...] = ()
    not_ready: str = ""
    cut_links: tuple[tuple[int, int], ...] = ()
    can_move: bool = False
    moves: tuple[MoveStatus, ...] = ()

    @property
    def self_id(self) -> int:
        """The reporting node, 0 if it has no id yet."""
        return next((node.node_id for node in self.nodes if node.is_self), 0)

    @property
    def agrees_on_time(self) -> bool:
        """A majority of the nodes is up, with right clocks."""
        nodes = [node for node in self.nodes if not node.removed]
        right = [node.node_id for node in nodes if node.up and not node.has_wrong_clock]
        return is_majority(right, [node.node_id for node in nodes])

    def node(self, node_id: int) -> NodeStatus | None:
        """A node, None if the cluster has none of that id."""
        return next((node for node in self.nodes if node.node_id == node_id), None)


def merged(own: ClusterStatus, others: Iterable[ClusterStatus]) -> ClusterStatus:
    """The status with what other nodes know of raft groups, of their links and of themselves.

    Of each group the report of its leader in the highest term counts, else the one of the highest
    term; of its damaged replicas all reports.
    """
    groups: dict[int, RaftGroupStatus] = {}
    damaged: dict[int, set[DamagedReplica]] = defaultdict(set)
    cut_links: set[tuple[int, int]] = set()
    reported: dict[int, NodeStatus] = {}
    told: dict[int, list[MoveStatus]] = defaultdict(list)
    for status in (own, *others):
        for move in status.moves:
            told[move.raft_group].append(move)
        for node in status.nodes:
            if node.is_self:
                reported[node.node_id] = node
            if node.through:
                cut_links.add((min(status.self_id, node.node_id), max(status.self_id, node.node_id)))
        for group in status.groups:
            known = groups.get(group.raft_group)
            if known is None or _weight(group) > _weight(known):
                groups[group.raft_group] = group
            if group.damaged:
                damaged[group.raft_group].update(group.damaged)
    for raft_group, replicas in damaged.items():
        groups[raft_group] = replace(groups[raft_group], damaged=tuple(sorted(replicas)))
    return replace(
        own,
        nodes=tuple(_with_own_report(node, reported.get(node.node_id)) for node in own.nodes),
        groups=tuple(groups[raft_group] for raft_group in sorted(groups)),
        cut_links=tuple(sorted(cut_links)),
        moves=tuple(_with_told(move, told[move.raft_group]) for move in own.moves),
    )


def _with_told(move: MoveStatus, told: Iterable[MoveStatus]) -> MoveStatus:
    """A move with what all nodes tell of it."""
    copies = {copy.node_id: copy for each in told for copy in each.copies}
    waits = next((each.waits for each in told if each.waits), "")
    return replace(move, waits=waits, copies=tuple(copies[node_id] for node_id in sorted(copies)))


def _with_own_report(node: NodeStatus, reported: NodeStatus | None) -> NodeStatus:
    """A node with what it tells of itself."""
    if reported is None:
        return node
    return replace(
        node, problem=node.problem or reported.problem, troubles=reported.troubles, disk=reported.disk
    )


def with_unreported(
    status: ClusterStatus, partitions: Iterable[tuple[int, str, tuple[int, ...]]]
) -> ClusterStatus:
    """The status with the partitions that nobody tells of, because none of their nodes is up.

    Args:
        partitions: raft group, name and nodes of each partition, by metadata.
    """
    known = {group.raft_group for group in status.groups}
    up = {node.node_id for node in status.nodes if node.up}
    missing = [
        RaftGroupStatus(raft_group, name, 0, 0, tuple(sorted(replicas)))
        for raft_group, name, replicas in partitions
        if raft_group not in known and up.isdisjoint(replicas)
    ]
    groups = sorted([*status.groups, *missing], key=lambda group: group.raft_group)
    return replace(status, groups=tuple(groups))


def without_gone(status: ClusterStatus) -> ClusterStatus:
    """The status without the removed nodes that no raft group has as a member any more."""
    nodes = [
        node
        for node in status.nodes
        if not node.removed or node.is_self or any(group.has(node.node_id) for group in status.groups)
    ]
    ids = {node.node_id for node in nodes}
    cut_links = [pair for pair in status.cut_links if ids.issuperset(pair)]
    return replace(status, nodes=tuple(nodes), cut_links=tuple(cut_links))


def _weight(group: RaftGroupStatus) -> tuple[int, bool, bool]:
    return group.term, bool(group.members), group.leader > 0
