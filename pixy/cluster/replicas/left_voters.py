"""Voters of raft groups that have left the cluster. Pure.

A node that is removed is a voter until the configurations are without it. If it ends before, the
others may be no majority: then nothing changes the configuration any more.
"""

from collections.abc import Iterable, Mapping

from pixy.cluster.replicas.partitions_by_raft_group import group_name
from pixy.cluster.state import NodeInfo
from pixy.multiraft import RaftGroup
from pixy.raft import ConfState
from pixy.raft.quorum import is_majority


def why_stuck(groups: Iterable[RaftGroup], nodes: Mapping[int, NodeInfo]) -> str:
    """Reason why groups have no leader without nodes that have left, empty if none needs one."""
    gone = {node_id for node_id, node in nodes.items() if node.removed}
    needed = {group_name(group): _needed(group.storage.conf_state, gone) for group in groups}
    names = [name for name, left in needed.items() if left]
    if not names:
        return ""
    left = sorted(set[int]().union(*needed.values()))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"no leader of {names[0]}{more} can be elected without node{'s' * (len(left) > 1)} {', '.join(map(str, left))}, which left "
        "the cluster: such a node has to run until it is no voter any more. If it cannot, `pixy cluster recover` makes "
        "this node the only voter"
    )


def _needed(conf: ConfState, gone: set[int]) -> set[int]:
    """Voters among these nodes, if the others are no majority; else none."""
    for voters in filter(None, (conf.voters, conf.voters_outgoing)):
        if not is_majority([each for each in voters if each not in gone], voters):
            return gone.intersection(conf.voters + conf.voters_outgoing)
    return set()
