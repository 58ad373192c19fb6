"""Sentences about everything in a cluster that is not well. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from pixy.cluster.status.move_states import move_standings
from pixy.cluster.status.status import ClusterStatus, MemberState, NodeStatus
from pixy.cluster.status.status_words import counted, groups_named, listed, no_connection, of_voters
from pixy.raft.quorum import is_majority

_RAISED = "; they get more from nodes that have been up for half a minute"


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
        yield f"{no_connection(one, other)}, and go through other nodes"
    yield from _leaderless(status)
    yield from _damaged(status)
    yield from _leaving(status)
    yield from _waiting_moves(status)
    yield from _drained(status)
    yield from _lagging(status)
    if status.under_replicated:
        yield (
            f"{counted('topic', status.under_replicated)} {'has' if len(status.under_replicated) == 1 else 'have'} fewer "
            f"replicas than `replication` asks for: {_why_fewer(status)}"
        )
    yield from _different_limits(status)
    if sum(not node.removed for node in status.nodes) == 2:
        yield "the cluster has two nodes: both must confirm each write, so the loss of either stops all writes"


def _why_fewer(status: ClusterStatus) -> str:
    why = "made when the cluster had fewer nodes, or nodes have left since"
    drained = [str(node.node_id) for node in status.nodes if node.draining and not node.removed]
    if drained:
        why += f"; {counted('node', drained)} {'is' if len(drained) == 1 else 'are'} drained and gets none"
    return f"{why}{_RAISED}" if status.can_move else why


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
    if status.agrees_on_time:
        other = "the time that a majority of the nodes agrees on"
        effect = "it stamps records by that time, leads only what no other node can, and lets nothing expire"
    else:
        other = f"that of node {status.self_id}"
        effect = "no majority of the nodes agrees on a time, so nothing expires"
    for node in filter(attrgetter("has_wrong_clock"), status.nodes):
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
        sizes = ", ".join(f"{size} at {counted('node', ids)}" for size, ids in sorted(by_size.items()))
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
        reason = f"{of_voters(left, voters)} {'are' if len(left) > 1 else 'is'} up"
        if is_majority(left, voters):
            reason = "an election is due"
        elif not is_majority(range(len(voters) - len(gone)), voters):
            reason += f", and {counted('node', gone)} will not come back: there cannot be one any more"
        elif not is_majority(range(len(voters) - len(lost)), voters):
            reason += f", and {counted('node', lost)} will hardly come back: others have their addresses"
        yield f"no leader for {groups_named(names)}: {reason}"


def _damaged(status: ClusterStatus) -> Iterator[str]:
    by_node: dict[tuple[int, bool], list[tuple[str, str]]] = defaultdict(list)
    for group in status.groups:
        for node_id, reason in group.damaged:
            by_node[node_id, len(group.voters) > 1].append((group.name, reason))
    for (node_id, has_others), damages in sorted(by_node.items()):
        names = [name for name, _ in damages]
        them = "it" if len(names) == 1 else "them"
        cure = "stop the node and put the file back from a backup"
        if has_others:
            cure = f"the node fetches {them} from other replicas"
        yield (
            f"node {node_id} has damaged {counted('partition', names)}, and serves nothing of {them}: {damages[0][1]}; {cure}"
        )


def _leaving(status: ClusterStatus) -> Iterator[str]:
    for node in status.nodes:
        if node.removed and node.is_self:
            yield f"this node was removed: it can be stopped when the others do not list node {node.node_id} any more"
        elif node.removed:
            names = [group.name for group in status.groups if group.has(node.node_id)]
            yield (
                f"node {node.node_id} was removed, and is a member of {groups_named(names)} until other voters have taken over: "
                "keep it running"
            )


def _waiting_moves(status: ClusterStatus) -> Iterator[str]:
    waiting: dict[str, list[str]] = defaultdict(list)
    for move, _, waits in move_standings(status):
        if waits:
            waiting[waits].append(move.name)
    for waits, names in waiting.items():
        yield f"{counted('partition', names)} cannot move on: {waits}"


def _drained(status: ClusterStatus) -> Iterator[str]:
    for node in status.nodes:
        if node.kept:
            count = f"{node.kept} replica{'' if node.kept == 1 else 's'}"
            yield f"node {node.node_id} is drained, and keeps {count}: no other node can take {'it' if node.kept == 1 else 'them'}"


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
            yield f"node {node_id} fetches checkpoints of {listed(names)}"
        else:
            yield (
                f"node {node_id} copies {counted('partition', names)}: the leaders' journals do not go back "
                "to where it is"
            )
