"""Samples of the status of an embedded cluster."""

from collections import Counter
from collections.abc import Iterable

from pixy.aio.steps import in_steps
from pixy.cluster import ClusterStatus, MoveStatus, NodeStatus, RaftGroupStatus
from pixy.metrics import Sample

_NO_COPIES = dict.fromkeys(
    ("pixy_moves_copied_bytes", "pixy_moves_size_bytes", "pixy_moves_copied_bytes_per_second"), 0
)


async def status_samples(cluster: str, status: ClusterStatus, found: dict[str, list[Sample]]) -> None:
    """Add the samples of a status.

    Args:
        cluster: its name.
        found: samples by family.
    """
    led: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    damaged: Counter[int] = Counter()
    learning: Counter[int] = Counter()
    lag: dict[int, int] = {}
    leaderless = 0
    async for group in in_steps(status.groups):
        led[group.leader] += 1
        leaderless += not group.leader
        behind.update(_behind(group))
        learning.update(group.learners)
        damaged.update(each.node_id for each in group.damaged)
        for member in group.members:
            lag[member.node_id] = max(lag.get(member.node_id, 0), member.behind)
    nodes = [node for node in status.nodes if not node.removed]
    found["kafka_brokers"] = [Sample((cluster,), len(nodes))]
    found["pixy_raft_groups"] = [Sample((cluster,), len(status.groups))]
    found["pixy_raft_groups_without_leader"] = [Sample((cluster,), leaderless)]
    found["pixy_raft_term"] = [Sample((cluster,), max((group.term for group in status.groups), default=0))]
    found["pixy_under_replicated_topics"] = [Sample((cluster,), len(status.under_replicated))]
    found["pixy_moves"] = [
        Sample((cluster, reason), number)
        for reason, number in Counter(move.reason for move in status.moves).items()
    ]
    found["pixy_waiting_moves"] = [Sample((cluster,), sum(_waits(move) for move in status.moves))]
    found["pixy_cut_links"] = [Sample((cluster,), len(status.cut_links))]
    found["pixy_node_info"] = [
        Sample((cluster, str(node.node_id), node.version, node.rack), 1) for node in nodes
    ]
    copies = _copies(status.moves)
    for node in nodes:
        labels = (cluster, str(node.node_id))
        numbers = {
            **_of_node(node),
            "pixy_raft_groups_led": led[node.node_id],
            "pixy_raft_learners": learning[node.node_id],
            "pixy_raft_commit_lag": lag.get(node.node_id, 0),
            "pixy_replicas_behind": behind[node.node_id],
            "pixy_replicas_damaged": damaged[node.node_id],
            **copies.get(node.node_id, _NO_COPIES),
        }
        for name, number in numbers.items():
            found.setdefault(name, []).append(Sample(labels, number))


def _copies(moves: Iterable[MoveStatus]) -> dict[int, dict[str, int]]:
    """Numbers of all copies that a node fetches for moves, by node."""
    found: dict[int, dict[str, int]] = {}
    for move in moves:
        for node_id, copied, total, rate, _ in move.copies:
            sums = found.setdefault(node_id, dict(_NO_COPIES))
            for name, number in zip(_NO_COPIES, (copied, total, rate), strict=True):
                sums[name] += number
    return found


def _waits(move: MoveStatus) -> bool:
    """True if something keeps a move from going on."""
    return bool(move.waits) or any(copy.waits for copy in move.copies)


def _behind(group: RaftGroupStatus) -> list[int]:
    """Nodes whose replica cannot confirm the next entry soon."""
    return [member.node_id for member in group.members if not member.caught_up]


def _of_node(node: NodeStatus) -> dict[str, float]:
    numbers: dict[str, float] = {
        "pixy_node_up": int(node.up),
        "pixy_node_clock_offset_seconds": node.clock_offset_ms / 1000,
        "pixy_node_starts": node.incarnation,
        "pixy_node_troubles": len(node.troubles) + bool(node.problem),
        "pixy_node_draining": int(node.draining),
        "pixy_node_replicas": node.replicas,
        "pixy_node_kept_replicas": node.kept,
    }
    if node.heard_s is not None:
        numbers["pixy_node_silent_seconds"] = node.heard_s
    if node.disk.total_bytes:
        numbers["pixy_disk_bytes"] = node.disk.total_bytes
        numbers["pixy_disk_free_bytes"] = node.disk.free_bytes
    return numbers
