"""Reasons against stopping a node, and against removing it from its cluster. Pure.

A voter counts where it can confirm the next entry: its node is up, and it has all entries but the
newest ones. While replication to it stands still, for a checkpoint or a copy, it does not count,
and neither does a damaged replica, which confirms entries and serves none.
"""

from collections import defaultdict
from collections.abc import Iterable

from pixy.cluster.peering import state_group_members
from pixy.cluster.status.status import ClusterStatus, RaftGroupStatus
from pixy.cluster.status.status_words import counted, groups_named, no_connection, of_voters
from pixy.multiraft import FIRST_PARTITION_GROUP
from pixy.raft.quorum import is_majority

_TOO_FEW = 2
"""Voters of which none can be missed."""


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
            return (f"{no_connection(one, other)}, and may need it",)
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
    cure = "They stay so: copy the records to a new topic"
    if status.can_move:
        cure = "Give them more with pixy topics alter --config replication=3"
    if status.can_move and set(topics).issubset(status.under_replicated):
        cure = "They get more from nodes that have been up for half a minute: wait"
    return (
        f"{counted('topic', topics)} would stop until it is back: {len(groups)} "
        f"partition{'' if len(groups) == 1 else 's'} with {replicas} replica{'' if replicas == '1' else 's'} only, one of "
        f"them there. {cure}, or go on with --accept-unreplicated"
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
    they will have is up and caught up, or that another removed node has not left yet: such a voter
    may end at any time. Also that the nodes do not agree on the time: those that stay could take a
    wrong clock for right, and a node alone believes its own. Empty if it can leave all its groups.
    """
    remaining = staying_without(status, node_id)
    up = {node.node_id for node in status.nodes if node.up}
    leaving = leaving_beside(status, node_id)

    def reason(group: RaftGroupStatus) -> str:
        not_left = [each for each in leaving if group.has(each)]
        if not_left:
            return f"node {not_left[0]}, which was removed, has not left yet"
        if group.raft_group < FIRST_PARTITION_GROUP:
            voters = state_group_members(group.raft_group, remaining).voters
        else:
            voters = tuple(voter for voter in group.voters if voter != node_id)
        return _unable(group, [voters], up) if voters else ""

    stuck = _stuck((group, reason(group)) for group in status.groups if group.has(node_id))
    return (*filter(None, [_disputed_time(status)]), *stuck)


def _disputed_time(status: ClusterStatus) -> str:
    """The reason against any removal while no time is agreed on because clocks are wrong.

    Of a majority that agrees at least half of the nodes is left after one removal: so wrong clocks
    never become the majority, or the only one.
    """
    wrong = [str(node.node_id) for node in status.nodes if node.has_wrong_clock]
    if not wrong or status.agrees_on_time:
        return ""
    return (
        f"no majority of the nodes agrees on the time, as the clocks of node {status.self_id} and {counted('node', wrong)} "
        "differ by more than a minute: nodes that stay could take a wrong clock for right, and remove records by it; "
        "set the clocks first"
    )


def leaving_beside(status: ClusterStatus, node_id: int) -> list[int]:
    """Other nodes that were removed, and have not left their raft groups yet."""
    return [node.node_id for node in status.nodes if node.removed and node.node_id != node_id]


def staying_without(status: ClusterStatus, node_id: int) -> list[int]:
    """The nodes that stay in the cluster when a node is removed."""
    return [node.node_id for node in status.nodes if node.node_id != node_id and not node.removed]


def _stuck(reasons: Iterable[tuple[RaftGroupStatus, str]]) -> tuple[str, ...]:
    """One text for all groups with the same reason; groups without one are left out."""
    stuck: dict[str, list[str]] = defaultdict(list)
    for group, reason in reasons:
        if reason:
            stuck[reason].append(group.name)
    return tuple(f"{groups_named(names)}: {reason}" for reason, names in stuck.items())


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
        if not is_majority(left, voters):
            without = " and undamaged" if group.damaged else ""
            return f"{of_voters(left, voters)} would be up and caught up{without}"
    return ""


def _able(group: RaftGroupStatus, up: set[int]) -> set[int]:
    """Members of a group that can confirm its next entry, and serve it."""
    damaged = {replica.node_id for replica in group.damaged}
    return {each.node_id for each in group.members if each.caught_up and each.node_id in up - damaged}
