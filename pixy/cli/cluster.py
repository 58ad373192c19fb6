"""`pixy cluster`: shows the nodes and raft groups of a cluster, and takes nodes out of it. Moves of
replicas are in `moves`.
"""

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from pixy.cli.confirmation import confirm
from pixy.cli.connection import CallFailed, DaemonConnection, client_command
from pixy.cli.moves import (
    NodeId,
    cancel,
    drain,
    is_draining,
    move,
    moves,
    plan,
    rebalance,
    set_draining,
    show_plan,
    status_of,
    undrain,
    wait_until_drained,
)
from pixy.cli.output import counted, print_json, print_line, print_table, report_error
from pixy.cli.recover import recover

if TYPE_CHECKING:
    from pixy.proto.pixy_cluster_pb2 import NodeStatus, RaftGroupStatus, StatusResponse

_WATCH_S = 2.0
_LEAVE_S = 0.5
_FAILED = 1
_CLOCK_SHOWN_MS = 100


@click.group()
def cluster() -> None:
    """Show the nodes of a cluster, move replicas, take nodes out, or recover a lost majority."""


for command in (recover, drain, undrain, move, rebalance, moves, cancel):
    cluster.add_command(command)


@cluster.command()
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds, until Ctrl-C.")
@click.option("--all", "every", is_flag=True, help="Show all partitions, not only those with a problem.")
@click.option(
    "--safe-to-stop",
    type=NodeId(or_self=True),
    metavar="NODE",
    help="Tell only if this node can be stopped without a failed call; self: the node that answers. With --watch: "
    "wait until it can.",
)
@click.option(
    "--accept-unreplicated",
    is_flag=True,
    help="With --safe-to-stop: topics with too few replicas to go on without the node may stop until it is back.",
)
@client_command
@click.pass_context
def status(
    ctx: click.Context,
    connection: DaemonConnection,
    watch: bool,
    every: bool,
    safe_to_stop: int | None,
    accept_unreplicated: bool,
) -> None:
    """Show nodes, raft groups and problems of a cluster.

    Any node answers for the whole cluster. BEHIND counts the entries that a member lacks, or says
    what it waits for. With --json one object: cluster_id, node_id, nodes, groups, under_replicated,
    not_ready, problems, can_move, moves; with --safe-to-stop: node, safe, reasons; with --watch one
    per line.

    Exits with 0 if nothing is wrong, or the node can be stopped, else with 1.
    """
    if accept_unreplicated and safe_to_stop is None:
        raise click.UsageError("--accept-unreplicated needs --safe-to-stop")
    if safe_to_stop is not None:
        well = _tell_safety(connection, safe_to_stop, watch=watch, accepts=accept_unreplicated)
    elif watch:
        well = _watch(connection, every=every)
    else:
        well = _show(connection, status_of(connection), every=every)
    ctx.exit(0 if well else _FAILED)


@cluster.command()
@click.argument("node", type=NodeId())
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def remove(connection: DaemonConnection, node: int, yes: bool) -> None:
    """Take NODE out of the cluster for good.

    Where replicas can move it is drained first, as far as other nodes can take its replicas.
    Returns when its raft groups have other voters, and it can be stopped; its data directory can
    join no more. Interrupted before it is removed, it stays drained. Refused while it has the only
    replica of a partition, or is needed for a majority because others are down, or no majority
    agrees on the time. Asks for confirmation; without a terminal, --yes is required. With --json an
    object: node.
    """
    from pixy.proto import pixy_cluster_pb2

    drains = status_of(connection).can_move
    if drains:
        planned = plan(connection, pixy_cluster_pb2.PlanMovesRequest(drained_node=node))
        show_plan(connection, planned, "")
    if not yes:
        confirm(f"Remove node {node} from the cluster for good?", f"node {node} was not removed")
    if drains:
        set_draining(connection, node, draining=True)
        wait_until_drained(connection, node)
    request = pixy_cluster_pb2.RemoveNodeRequest(cluster=connection.cluster, node_id=node)
    with connection.open_cluster() as stub:
        stub.RemoveNode(request, timeout=connection.timeout)
    if not connection.as_json:
        print_line(f"removed node {node}")
    _wait_until_left(connection, node)
    if connection.as_json:
        print_json({"node": node})


@cluster.command()
@click.argument("node", type=NodeId())
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def forget(connection: DaemonConnection, node: int, yes: bool) -> None:
    """Give up NODE, which is lost with its data or refused as an older copy of itself.

    Its id never comes back: with an empty data directory the machine joins as a new node. Records
    of which it had the only replica are lost. Refused while it is up. Asks for confirmation;
    without a terminal, --yes is required. With --json an object: node.
    """
    from pixy.proto import pixy_cluster_pb2

    if not yes:
        question = f"Forget node {node}, with all records of which it has the only replica?"
        confirm(question, f"node {node} was not forgotten")
    request = pixy_cluster_pb2.ForgetNodeRequest(cluster=connection.cluster, node_id=node)
    with connection.open_cluster() as stub:
        stub.ForgetNode(request, timeout=connection.timeout)
    connection.tell({"node": node}, f"forgot node {node}")


def _wait_until_left(connection: DaemonConnection, node: int) -> None:
    """Return once no raft group has a node as a member any more, whatever fails meanwhile."""
    told = down = False
    while True:
        try:
            found = status_of(connection)
        except CallFailed as error:
            report_error(str(error))
            time.sleep(_WATCH_S)
            continue
        if not found.not_ready and not any(_has(group, node) for group in found.groups):
            break
        down = any(each.node_id == node and not each.up for each in found.nodes)
        if not told and not connection.as_json:
            print_line(f"its raft groups get other voters{'' if down else '; do not stop it yet'}")
        told = True
        time.sleep(_LEAVE_S)
    if told and not connection.as_json:
        print_line(f"node {node} {'has left' if down else 'can be stopped'}")


def _has(group: "RaftGroupStatus", node: int) -> bool:
    return node in (*group.voters, *group.learners, *group.voters_outgoing)


def _watch(connection: DaemonConnection, *, every: bool) -> bool:
    """Show the status again and again; a daemon that does not answer may come back."""
    while True:
        try:
            found = status_of(connection)
            if sys.stdout.isatty():
                click.clear()
            _show(connection, found, every=every)
            if not connection.as_json:
                print_line("")
        except CallFailed as error:
            report_error(str(error))
        time.sleep(_WATCH_S)


def _tell_safety(connection: DaemonConnection, node_id: int, *, watch: bool, accepts: bool) -> bool:
    """Print if a node can be stopped. With `watch` return once it can, whatever fails meanwhile.

    Args:
        accepts: topics with too few replicas may stop.
    """
    told = ""
    while True:
        try:
            found = status_of(connection)
        except CallFailed as error:
            if not watch:
                raise
            if str(error) != told:
                report_error(str(error))
            told = str(error)
        else:
            wanted = node_id or found.node_id
            if not wanted:
                raise CallFailed("the node that answers belongs to no cluster yet")
            node = next((node for node in found.nodes if node.node_id == wanted), None)
            if node is None:
                raise CallFailed(f"the cluster has no node {node_id}")
            against = [each for each in node.reasons_to_stay if not (accepts and each == node.unreplicated)]
            reasons = "\n".join(against)
            if not watch or reasons != told or not reasons:
                _print_safety(connection, node, against)
            if not watch or not reasons:
                return not reasons
            told = reasons
        time.sleep(_WATCH_S)


def _print_safety(connection: DaemonConnection, node: "NodeStatus", reasons: list[str]) -> None:
    if connection.as_json:
        print_json({"node": node.node_id, "safe": not reasons, "reasons": reasons})
    elif not reasons:
        print_line(f"node {node.node_id} can be stopped{'' if node.up else ': it is not up'}")
    for reason in [] if connection.as_json else reasons:
        print_line(f"node {node.node_id} must not be stopped: {reason}")


def _show(connection: DaemonConnection, found: "StatusResponse", *, every: bool) -> bool:
    """Print a status; True if it has no problems."""
    if connection.as_json:
        print_json(_json_of(found))
        return not found.problems
    leads = {node.node_id: 0 for node in found.nodes}
    for group in found.groups:
        leads[group.leader] = leads.get(group.leader, 0) + 1
    print_table(
        ["NODE", "STATE", "ADDRESS", "GRPC ADDRESS", "RACK", "RELEASE", "START", "CLOCK", "LEADS"],
        [[*_node_row(node, found.node_id), leads[node.node_id]] for node in found.nodes],
    )
    shown = [group for group in found.groups if every or _is_shown(group)]
    if shown:
        print_line("")
        print_table(
            ["RAFT GROUP", "LEADER", "TERM", "VOTERS", "LEARNERS", "BEHIND"],
            [_group_row(group) for group in shown],
        )
    hidden = len(found.groups) - len(shown)
    if hidden:
        print_line(f"and {counted(hidden, 'partition')} without a problem (--all)")
    if found.moves:
        print_line(f"{counted(len(found.moves), 'partition')} on the way to other nodes (pixy cluster moves)")
    print_line("")
    for problem in found.problems:
        print_line(f"problem: {problem}")
    if not found.problems:
        print_line("no problems")
    return not found.problems


def _node_row(node: "NodeStatus", own: int) -> list[object]:
    return [
        node.node_id,
        _state_of(node, own),
        node.address or "-",
        node.grpc_address or "-",
        node.rack or "-",
        node.version or "-",
        node.incarnation,
        f"{node.clock_offset_ms / 1000:+.1f}s" if abs(node.clock_offset_ms) >= _CLOCK_SHOWN_MS else "-",
    ]


def _state_of(node: "NodeStatus", own: int) -> str:
    state = "up" if node.up else "down"
    if not node.up and node.HasField("silent_ms"):
        state = f"down for {node.silent_ms / 1000:.0f}s"
    if node.removed:
        state += ", removed"
    elif node.draining:
        state += ", drains" if is_draining(node) else ", drained"
    if node.through:
        state += f", through {node.through}"
    return f"{state}, answers" if node.node_id == own else state


def _is_shown(group: "RaftGroupStatus") -> bool:
    return not group.is_partition or not group.leader or _behind(group) != "-"


def _group_row(group: "RaftGroupStatus") -> list[object]:
    voters = _ids(group.voters)
    if group.voters_outgoing:
        voters += f" (was {_ids(group.voters_outgoing)})"
    return [
        group.name,
        str(group.leader or "none"),
        group.term,
        voters,
        _ids(group.learners) or "-",
        _behind(group),
    ]


def _behind(group: "RaftGroupStatus") -> str:
    """Members that lack entries or are damaged: `3 by 12`, `3 checkpoint` or `3 damaged`."""
    lag = [
        f"{member.node_id} {f'by {member.behind}' if member.state == 'replicating' else member.state}"
        for member in group.members
        if member.state not in ("leader", "replicating") or member.behind
    ]
    return ", ".join([*lag, *(f"{replica.node_id} damaged" for replica in group.damaged)]) or "-"


def _ids(node_ids: Any) -> str:
    return ",".join(map(str, node_ids))


def _json_of(found: "StatusResponse") -> dict[str, Any]:
    from pixy.plain_messages import plain

    status = plain(found)
    for node, shown in zip(found.nodes, status["nodes"], strict=True):
        del shown["max_message_bytes"]
        shown["through"] = node.through or None
        shown["silent_ms"] = node.silent_ms if node.HasField("silent_ms") else None
        shown["disk_bytes"] = node.disk_bytes or None
        shown["disk_free_bytes"] = node.disk_free_bytes if node.disk_bytes else None
    return status
