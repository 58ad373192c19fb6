"""Status of a cluster as one node sees it, and what follows from it.

Pure. A node knows from its own connections which nodes are up, from its raft groups their
configurations, and of the groups that it leads how far each member is. `merged` puts together what
all nodes know: the members of each group are taken from its leader.

`problems`, `safe_to_stop` and `reasons_to_keep` judge a status. A voter counts where it can confirm
the next entry: its node is up, and it has all entries but the newest ones. While replication to it
stands still, for a checkpoint or a copy, it does not count, and neither does a damaged replica,
which confirms entries and serves none.

A node that is removed leaves its raft groups one after the other. It is needed, and listed, as long
as one of them has it as a member.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from pixy.cluster.membership import state_group_members
from pixy.cluster.metadata import FIRST_PARTITION_GROUP
from pixy.cluster.node_time import CLOCK_OFF_MS

__all__ = [
    "CAUGHT_UP_ENTRIES",
    "ClusterStatus",
    "DamagedReplica",
    "MemberState",
    "MemberStatus",
    "NodeStatus",
    "RaftGroupStatus",
    "merged",
    "problems",
    "reasons_to_keep",
    "safe_to_stop",
    "staying_without",
    "unreplicated",
    "without_gone",
]

CAUGHT_UP_ENTRIES = 1000
"""Entries that a member may lack and still count as caught up: some are always on their way."""

_NAMES_SHOWN = 3
_TOO_FEW = 2
"""Voters of which none can be missed."""


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
    """

    cluster_id: bytes
    nodes: tuple[NodeStatus, ...]
    groups: tuple[RaftGroupStatus, ...]
    under_replicated: tuple[str, ...] = ()
    not_ready: str = ""
    cut_links: tuple[tuple[int, int], ...] = ()

    @property
    def self_id(self) -> int:
        """The reporting node, 0 if it has no id yet."""
        return next((node.node_id for node in self.nodes if node.is_self), 0)

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
    for status in (own, *others):
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
    )


def _with_own_report(node: NodeStatus, reported: NodeStatus | None) -> NodeStatus:
    """A node with what it tells of itself."""
    if reported is None:
        return node
    return replace(node, problem=node.problem or reported.problem, troubles=reported.troubles)


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


# --- stopping a node ------------------------------------------------------------------------------


def safe_to_stop(status: ClusterStatus, node_id: int) -> tuple[str, ...]:
    """Reasons against stopping a node: raft groups that would have no majority of voters that are
    up and caught up. Empty if it can be stopped without a call that fails.
    """
    node = status.node(node_id)
    if node is None:
        known = ", ".join(str(each.node_id) for each in status.nodes)
        return (f"the cluster has no node {node_id}, only {known}",)
    if not node.up:
        return ()
    for one, other in status.cut_links:
        if node_id not in (one, other):
            return (f"{_no_connection(one, other)}, and may need it",)
    up = {each.node_id for each in status.nodes if each.up}
    lasting, named = unreplicated(status, node_id), {group.raft_group for group in _too_few(status, node_id)}
    others = [group for group in status.groups if group.raft_group not in named]
    stuck = _stuck((group, _reason_to_stay(group, node_id, up)) for group in others)
    return (*filter(None, [lasting]), *stuck)


def unreplicated(status: ClusterStatus, node_id: int) -> str:
    """The reason against stopping a node that does not pass: topics with too few replicas to go on
    without it, though all of these are well. Empty if there is none.
    """
    groups = _too_few(status, node_id)
    topics = list(dict.fromkeys(group.name.rpartition("-")[0] for group in groups))
    if not topics:
        return ""
    replicas = " or ".join(sorted({str(len(group.voters)) for group in groups}))
    return (
        f"{_counted('topic', topics)} would stop until it is back: {len(groups)} "
        f"partition{'' if len(groups) == 1 else 's'} with {replicas} replica{'' if replicas == '1' else 's'} only, one of "
        "them there. They stay so: copy the records to a new topic, or go on with --accept-unreplicated"
    )


def _too_few(status: ClusterStatus, node_id: int) -> list[RaftGroupStatus]:
    """Partitions that need a node which is up, and will need it when everything is well."""
    node, up = status.node(node_id), {each.node_id for each in status.nodes if each.up}
    if node is None or not node.up or sum(not each.removed for each in status.nodes) == 1:
        return []
    return [
        group
        for group in status.groups
        if group.raft_group >= FIRST_PARTITION_GROUP
        and node_id in group.voters
        and len(group.voters) <= _TOO_FEW
        and not group.voters_outgoing
        and group.leader
        and _able(group, up).issuperset(group.voters)
    ]


def reasons_to_keep(status: ClusterStatus, node_id: int) -> tuple[str, ...]:
    """Reasons against the removal of a node: raft groups of which no majority of the voters that
    they will have is up and caught up. Empty if it can leave all its groups.
    """
    remaining = staying_without(status, node_id)
    up = {node.node_id for node in status.nodes if node.up}

    def reason(group: RaftGroupStatus) -> str:
        if group.raft_group < FIRST_PARTITION_GROUP:
            voters = state_group_members(group.raft_group, remaining).voters
        else:
            voters = tuple(voter for voter in group.voters if voter != node_id)
        return _unable(group, [voters], up) if voters else ""

    return _stuck((group, reason(group)) for group in status.groups if group.has(node_id))


def staying_without(status: ClusterStatus, node_id: int) -> list[int]:
    """The nodes that stay in the cluster when a node is removed."""
    return [node.node_id for node in status.nodes if node.node_id != node_id and not node.removed]


def _stuck(reasons: Iterable[tuple[RaftGroupStatus, str]]) -> tuple[str, ...]:
    """One text for all groups with the same reason; groups without one are left out."""
    stuck: dict[str, list[str]] = defaultdict(list)
    for group, reason in reasons:
        if reason:
            stuck[reason].append(group.name)
    return tuple(f"{_groups(names)}: {reason}" for reason, names in stuck.items())


def _reason_to_stay(group: RaftGroupStatus, node_id: int, up: set[int]) -> str:
    """Reason why a group needs a node; empty if it can do without."""
    configurations = [voters for voters in (group.voters, group.voters_outgoing) if node_id in voters]
    return _unable(group, configurations, up - {node_id}) if configurations else ""


def _unable(group: RaftGroupStatus, configurations: Iterable[tuple[int, ...]], up: set[int]) -> str:
    """Reason why a group could not decide with these configurations; empty if it could."""
    if not group.leader:
        return "no leader, so nobody knows which replicas are complete"
    if not group.members:
        return f"the leader, node {group.leader}, has not told which replicas are complete"
    rest = _able(group, up)
    for voters in configurations:
        left = [voter for voter in voters if voter in rest]
        if not _is_majority(left, voters):
            without = " and undamaged" if group.damaged else ""
            return f"{_of_voters(left, voters)} would be up and caught up{without}"
    return ""


def _able(group: RaftGroupStatus, up: set[int]) -> set[int]:
    """Members of a group that can confirm its next entry, and serve it."""
    damaged = {replica.node_id for replica in group.damaged}
    return {each.node_id for each in group.members if each.caught_up and each.node_id in up - damaged}


def _is_majority(some: Sequence[int], voters: Sequence[int]) -> bool:
    return len(some) > len(voters) // 2


# --- problems -------------------------------------------------------------------------------------


def problems(status: ClusterStatus) -> tuple[str, ...]:
    """Sentences about everything that is not well, the most severe first."""
    return tuple(_problems(status))


def _problems(status: ClusterStatus) -> Iterator[str]:
    if status.not_ready:
        yield f"this node is not ready: {status.not_ready}"
    for node in status.nodes:
        yield from _node_problems(node)
    yield from _wrong_clocks(status)
    yield from _replaced_problems(status)
    for one, other in status.cut_links:
        yield f"{_no_connection(one, other)}, and go through other nodes"
    yield from _leaderless(status)
    yield from _damaged(status)
    yield from _leaving(status)
    yield from _lagging(status)
    if status.under_replicated:
        yield (
            f"{_counted('topic', status.under_replicated)} {'has' if len(status.under_replicated) == 1 else 'have'} fewer "
            "replicas than `replication` asks for: made when the cluster had fewer nodes, or nodes have left since"
        )
    yield from _different_limits(status)
    if sum(not node.removed for node in status.nodes) == 2:
        yield "the cluster has two nodes: both must confirm each write, so the loss of either stops all writes"


def _node_problems(node: NodeStatus) -> Iterator[str]:
    name = _name(node)
    if not node.up:
        heard = "since this node started" if node.heard_s is None else f"for {node.heard_s:.0f} s"
        reason = f": {node.problem}" if node.problem else ""
        yield f"{name} is not reachable: not heard of {heard}{reason}"
    elif node.problem:
        yield f"{name}: {node.problem}"
    for trouble in node.troubles:
        yield f"{name}: {trouble}"


def _wrong_clocks(status: ClusterStatus) -> Iterator[str]:
    nodes = [node for node in status.nodes if not node.removed]
    wrong = [node for node in status.nodes if node.up and abs(node.clock_offset_ms) > CLOCK_OFF_MS]
    right = [node for node in nodes if node.up and node not in wrong]
    if _is_majority([node.node_id for node in right], [node.node_id for node in nodes]):
        other = "the time that a majority of the nodes agrees on"
        effect = "it stamps records by that time, leads only what no other node can, and lets nothing expire"
    else:
        other = f"that of node {status.self_id}"
        effect = "no majority of the nodes agrees on a time, so nothing expires"
    for node in wrong:
        word = "ahead of" if node.clock_offset_ms > 0 else "behind"
        yield f"the clock of {_name(node)} is {abs(node.clock_offset_ms) / 1000:.0f} s {word} {other}: {effect}"


def _name(node: NodeStatus) -> str:
    return f"node {node.node_id}{node.address and f' ({node.address})'}"


def _different_limits(status: ClusterStatus) -> Iterator[str]:
    """Different `producer.max_message_bytes`, which lasts while a change is rolled out."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for node in status.nodes:
        if node.max_message_bytes and not node.removed:
            by_size[node.max_message_bytes].append(str(node.node_id))
    if len(by_size) > 1:
        sizes = ", ".join(f"{size} at {_counted('node', ids)}" for size, ids in sorted(by_size.items()))
        yield (
            f"the nodes have different producer.max_message_bytes: {sizes}. Each refuses larger messages of its own clients, "
            "and takes those of the others"
        )


def _replaced(status: ClusterStatus) -> dict[int, int]:
    """Nodes that are down while a later one is up at their address, with that one: most likely
    their directory is gone.
    """
    found: dict[int, int] = {}
    for node in status.nodes:
        later = [
            other.node_id
            for other in status.nodes
            if other.up and other.node_id > node.node_id and other.address == node.address
        ]
        if later and node.address and not node.up and not node.removed:
            found[node.node_id] = max(later)
    return found


def _replaced_problems(status: ClusterStatus) -> Iterator[str]:
    for node_id, other in _replaced(status).items():
        yield (
            f"node {other} is at the address of node {node_id}: if the directory of node {node_id} is lost, "
            f"give it up with `pixy cluster forget {node_id}`"
        )


def _no_connection(one: int, other: int) -> str:
    return f"nodes {one} and {other} have no connection to each other"


def _leaderless(status: ClusterStatus) -> Iterator[str]:
    up = {node.node_id for node in status.nodes if node.up}
    replaced = _replaced(status)
    by_voters: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for group in status.groups:
        if not group.leader:
            by_voters[group.voters].append(group.name)
    for voters, names in by_voters.items():
        left = [voter for voter in voters if voter in up]
        gone = [str(voter) for voter in voters if status.node(voter) is None]
        lost = [str(voter) for voter in voters if voter in replaced or status.node(voter) is None]
        reason = f"{_of_voters(left, voters)} {'are' if len(left) > 1 else 'is'} up"
        if _is_majority(left, voters):
            reason = "an election is due"
        elif not _is_majority(range(len(voters) - len(gone)), voters):
            reason += f", and {_counted('node', gone)} will not come back: there cannot be one any more"
        elif not _is_majority(range(len(voters) - len(lost)), voters):
            reason += f", and {_counted('node', lost)} will hardly come back: others have their addresses"
        yield f"no leader for {_groups(names)}: {reason}"


def _damaged(status: ClusterStatus) -> Iterator[str]:
    by_node: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for group in status.groups:
        for node_id, reason in group.damaged:
            by_node[node_id].append((group.name, reason))
    for node_id, damages in sorted(by_node.items()):
        names = [name for name, _ in damages]
        yield (
            f"node {node_id} has damaged {_counted('partition', names)}, and serves nothing of "
            f"{'it' if len(names) == 1 else 'them'}: {damages[0][1]}"
        )


def _leaving(status: ClusterStatus) -> Iterator[str]:
    for node in status.nodes:
        if node.removed and node.is_self:
            yield f"this node was removed: it can be stopped when the others do not list node {node.node_id} any more"
        elif node.removed:
            names = [group.name for group in status.groups if group.has(node.node_id)]
            yield (
                f"node {node.node_id} was removed, and is a member of {_groups(names)} until other voters have taken over: "
                "keep it running"
            )


def _lagging(status: ClusterStatus) -> Iterator[str]:
    up = {node.node_id for node in status.nodes if node.up}
    slow: dict[int, list[tuple[int, str]]] = defaultdict(list)
    waiting: dict[tuple[int, MemberState], list[str]] = defaultdict(list)
    for group in status.groups:
        for member in group.members:
            if member.node_id not in up or member.caught_up:
                continue
            if member.state in (MemberState.CHECKPOINT, MemberState.COPY):
                waiting[member.node_id, member.state].append(group.name)
            elif member.behind:
                slow[member.node_id].append((member.behind, group.name))
    for node_id, lags in sorted(slow.items()):
        behind, name = max(lags)
        others = f" and, by less, in {len(lags) - 1} other raft groups" if len(lags) > 1 else ""
        yield f"node {node_id} is {behind} entries behind in {name}{others}"
    for (node_id, state), names in sorted(waiting.items()):
        if state is MemberState.CHECKPOINT:
            yield f"node {node_id} fetches checkpoints of {_listed(names)}"
        else:
            yield (
                f"node {node_id} waits for copies of {_counted('partition', names)}: the leaders' journals do not go back "
                "to where it is"
            )


# --- words ----------------------------------------------------------------------------------------


def _groups(names: Sequence[str]) -> str:
    return _counted("raft group", names)


def _counted(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'' if len(names) == 1 else 's'} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    if len(names) > _NAMES_SHOWN + 1:
        return f"{', '.join(names[:_NAMES_SHOWN])} and {len(names) - _NAMES_SHOWN} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _of_voters(left: Sequence[int], voters: Sequence[int]) -> str:
    named = f"of {_counted('voter', [str(voter) for voter in voters])}"
    return f"{named} only {_listed([str(voter) for voter in left])}" if left else f"{named} none"
