"""Commands of `pixy cluster` about replicas that move between nodes: what moves, why it waits, and
plans to be confirmed.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pixy.cli.confirmation import confirm
from pixy.cli.connection import CallFailed, DaemonConnection, client_command
from pixy.cli.output import counted, print_json, print_line, print_table, report_error

if TYPE_CHECKING:
    from pixy.proto.pixy_cluster_pb2 import (
        MoveStatus,
        NodeStatus,
        PlanMovesRequest,
        PlanMovesResponse,
        PlannedMove,
        StatusResponse,
    )

_WATCH_S = 2.0
_DRAIN_LOOK_S = 1.0
_LAGS_MAX = 5
_SHOWN_MAX = 20
_NODE_MAX = (1 << 31) - 1
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")

WHY_NO_MOVES = "replicas do not move: a node of the cluster runs, or has last run, a release that cannot"


class NodeId(click.ParamType["int"]):
    """The id of a node; with `or_self` also `self`, as `SELF`."""

    name = "node"

    def __init__(self, *, or_self: bool = False) -> None:
        self._or_self = or_self

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if self._or_self and value == "self":
            return SELF
        if isinstance(value, int):
            return value
        if value.isdecimal() and 1 <= int(value) <= _NODE_MAX:
            return int(value)
        others = ", or self" if self._or_self else ""
        raise click.BadParameter(f"{value!r} is not the id of a node, a number from 1 on{others}", ctx, param)


SELF = 0
"""The node that answers, in place of an id."""


class PartitionName(click.ParamType[tuple[str, int]]):
    """`TOPIC/PARTITION`."""

    name = "TOPIC/PARTITION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        topic, sign, number = value.rpartition("/")
        if not topic or not sign or not number.isdecimal() or int(number) > _NODE_MAX:
            self.fail(f"{value!r} is not TOPIC/PARTITION, such as orders/0", param, ctx)
        return topic, int(number)


_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@click.argument("node", type=NodeId())
@_yes
@click.option("--dry-run", is_flag=True, help="Show what would move, and drain nothing.")
@client_command
def drain(connection: DaemonConnection, node: int, yes: bool, dry_run: bool) -> None:
    """Have NODE give its replicas to other nodes, and get none.

    Returns when that is decided: `pixy cluster moves --watch` waits until all have moved. A replica
    that no other node can take stays. `undrain` ends it. Shows what moves, and asks for
    confirmation; without a terminal, --yes is required. With --json an object: node, moves,
    left_out, draining.
    """
    from pixy.proto import pixy_cluster_pb2

    planned = plan(connection, pixy_cluster_pb2.PlanMovesRequest(drained_node=node))
    show_plan(connection, planned, f"node {node} has no replicas that could move")
    if not dry_run:
        if not yes:
            confirm(f"Drain node {node}?", f"node {node} was not drained")
        set_draining(connection, node, draining=True)
    if connection.as_json:
        print_json({"node": node, **_json_of_plan(planned), "draining": not dry_run})
    elif not dry_run:
        print_line(f"node {node} is drained: pixy cluster moves --watch waits until its replicas have moved")


@click.command()
@click.argument("node", type=NodeId())
@client_command
def undrain(connection: DaemonConnection, node: int) -> None:
    """Have NODE get replicas again, after `drain`.

    Replicas that have not moved away yet stay. With --json an object: node, draining.
    """
    set_draining(connection, node, draining=False)
    connection.tell({"node": node, "draining": False}, f"node {node} gets replicas again")


@click.command()
@click.argument("partition", type=PartitionName(), metavar="TOPIC/PARTITION")
@click.argument("from_node", type=NodeId(), metavar="FROM")
@click.argument("to_node", type=NodeId(), metavar="TO")
@_yes
@client_command
def move(
    connection: DaemonConnection, partition: tuple[str, int], from_node: int, to_node: int, yes: bool
) -> None:
    """Move the replica of TOPIC/PARTITION on node FROM to node TO.

    Returns when the move has begun; `pixy cluster moves` shows it. Asks for confirmation; without a
    terminal, --yes is required. With --json an object: moves, left_out, refused.
    """
    from pixy.proto import pixy_cluster_pb2

    topic, number = partition
    moved = pixy_cluster_pb2.MovedReplica(topic=topic, partition=number, from_node=from_node, to_node=to_node)
    planned = plan(connection, pixy_cluster_pb2.PlanMovesRequest(move=moved))
    _begin(connection, planned, "", "Move it?", yes=yes)


@click.command()
@_yes
@click.option("--dry-run", is_flag=True, help="Show what would move, and move nothing.")
@client_command
def rebalance(connection: DaemonConnection, yes: bool, dry_run: bool) -> None:
    """Move replicas so that all nodes have as many, and are preferred as leaders of as many.

    A node takes 64 partitions at a time: ask again when these have moved. Partitions that move, or
    have a replica on a node that is down or drained, stay where they are. Shows what moves, and
    asks for confirmation; without a terminal, --yes is required. With --json an object: moves,
    left_out, refused.
    """
    from pixy.proto import pixy_cluster_pb2

    planned = plan(connection, pixy_cluster_pb2.PlanMovesRequest(rebalance=True))
    _begin(
        connection,
        planned,
        "the nodes have as many replicas as they can",
        "Move them?",
        yes=yes,
        dry_run=dry_run,
    )


@click.command()
@click.argument("partition", type=PartitionName(), required=False, metavar="[TOPIC/PARTITION]")
@click.option("--all", "every", is_flag=True, help="Of all partitions that were moved by command.")
@_yes
@client_command
def cancel(connection: DaemonConnection, partition: tuple[str, int] | None, every: bool, yes: bool) -> None:
    """Take the move of TOPIC/PARTITION back, or with --all those of all partitions.

    The replicas stay where they serve, or get back there. What the cluster moves by itself goes on,
    with the reason: it would begin anew. Asks for confirmation; without a terminal, --yes is
    required. With --json an object: moves, left_out, refused.
    """
    from pixy.proto import pixy_cluster_pb2

    if (partition is None) is not every:
        raise click.UsageError("give either TOPIC/PARTITION or --all")
    topic, number = partition or ("", 0)
    cancelled = pixy_cluster_pb2.CancelledMoves(topic=topic, partition=number)
    planned = plan(connection, pixy_cluster_pb2.PlanMovesRequest(cancel=cancelled))
    _begin(connection, planned, "nothing is to be taken back", "Take them back?", yes=yes)


@click.command()
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds, until nothing is left to move.")
@client_command
def moves(connection: DaemonConnection, watch: bool) -> None:
    """Show the partitions that move between nodes, how far they are, and what they wait for.

    STATE is one of: learner (new nodes become members), copying, caught up, handing over (the
    leader goes), joint (the voters are swapped), ending, or waiting. With --json an object: moves;
    with --watch one per line.
    """
    while True:
        try:
            found = status_of(connection)
            if watch and sys.stdout.isatty():
                click.clear()
            _show_moves(connection, found)
            if not watch or not (found.moves or any(map(is_draining, found.nodes))):
                return
        except CallFailed as error:
            if not watch:
                raise
            report_error(str(error))
        time.sleep(_WATCH_S)


# --- calls ----------------------------------------------------------------------------------------


def status_of(connection: DaemonConnection) -> "StatusResponse":
    """Status of the cluster."""
    from pixy.proto import pixy_cluster_pb2

    request = pixy_cluster_pb2.StatusRequest(cluster=connection.cluster)
    with connection.open_cluster() as stub:
        return stub.Status(request, timeout=connection.timeout)


def plan(connection: DaemonConnection, request: "PlanMovesRequest") -> "PlanMovesResponse":
    """Plan of moves."""
    request.cluster = connection.cluster
    with connection.open_cluster() as stub:
        return stub.PlanMoves(request, timeout=connection.timeout)


def set_draining(connection: DaemonConnection, node: int, *, draining: bool) -> None:
    """Drain a node, or end that."""
    from pixy.proto import pixy_cluster_pb2

    request = pixy_cluster_pb2.DrainNodeRequest(cluster=connection.cluster, node_id=node, draining=draining)
    with connection.open_cluster() as stub:
        stub.DrainNode(request, timeout=connection.timeout)


def is_draining(node: "NodeStatus") -> bool:
    """True if replicas of a drained node are yet to move."""
    return node.draining and not node.removed and node.replicas > node.kept_replicas


def wait_until_drained(connection: DaemonConnection, node_id: int) -> None:
    """Return once a drained node has no replicas but those that no other node can take, whatever
    fails meanwhile.
    """
    told, undrained = "", 0
    while True:
        try:
            found = status_of(connection)
        except CallFailed as error:
            report_error(str(error))
            time.sleep(_WATCH_S)
            continue
        node = next((each for each in found.nodes if each.node_id == node_id), None)
        going = [move for move in found.moves if node_id in move.replicas and node_id not in move.target]
        if found.not_ready or node is None:
            raise CallFailed(found.not_ready or f"the cluster has no node {node_id}")
        # Another node may answer than the one that was asked to drain it, and lag.
        undrained = 0 if node.draining else undrained + 1
        if undrained > _LAGS_MAX:
            raise CallFailed(f"node {node_id} is drained no more, and was not removed")
        if undrained:
            time.sleep(_DRAIN_LOOK_S)
            continue
        if not going and not is_draining(node):
            return
        text = f"{counted(len(going), 'replica')} of node {node_id} on the way to other nodes"
        text += "".join(f"; {waits}" for waits in sorted({move.waits for move in going if move.waits}))
        if text != told and not connection.as_json:
            print_line(text)
        told = text
        time.sleep(_DRAIN_LOOK_S)


def _begin(
    connection: DaemonConnection,
    planned: "PlanMovesResponse",
    nothing: str,
    question: str,
    *,
    yes: bool,
    dry_run: bool = False,
) -> None:
    """Show a plan, and begin it once it is confirmed."""
    from pixy.proto import pixy_cluster_pb2

    show_plan(connection, planned, nothing)
    refused: list[str] = []
    begins = bool(planned.moves) and not dry_run
    if begins:
        if not yes:
            confirm(question, "nothing was moved")
        tokens = [each.token for each in planned.moves]
        request = pixy_cluster_pb2.BeginMovesRequest(
            cluster=connection.cluster, reason=planned.moves[0].reason, tokens=tokens
        )
        with connection.open_cluster() as stub:
            refused += stub.BeginMoves(request, timeout=connection.timeout).refused
    if connection.as_json:
        print_json({**_json_of_plan(planned), "refused": refused})
        return
    for line in refused:
        print_line(f"not moved: {line}")
    if begins:
        print_line(
            f"{counted(len(planned.moves) - len(refused), 'move')} begun: pixy cluster moves shows them"
        )


# --- output ---------------------------------------------------------------------------------------


def show_plan(connection: DaemonConnection, planned: "PlanMovesResponse", nothing: str) -> None:
    """Print a plan."""
    if connection.as_json:
        return
    if planned.moves:
        print_table(
            ["TOPIC", "PARTITION", "REPLICAS", "MOVES TO", "REASON"],
            [
                [each.topic, each.partition, _ids(each.replicas), _ids(each.target), each.reason]
                for each in planned.moves[:_SHOWN_MAX]
            ],
        )
        if len(planned.moves) > _SHOWN_MAX:
            print_line(f"and {counted(len(planned.moves) - _SHOWN_MAX, 'partition')} more")
    elif nothing:
        print_line(nothing)
    for sentence in planned.left_out:
        print_line(sentence)


def shown_move(move: "MoveStatus") -> str:
    """A move in a line: where to, why, how far, and what it waits for."""
    return f"moves to {_ids(move.target)} ({move.reason}): {_progress(move)}"


def _show_moves(connection: DaemonConnection, found: "StatusResponse") -> None:
    if connection.as_json:
        print_json({"moves": [_json_of_move(move) for move in found.moves]})
        return
    if not found.moves:
        left = [node for node in found.nodes if is_draining(node)]
        print_line("nothing moves" if found.can_move else WHY_NO_MOVES)
        for node in left:
            print_line(f"node {node.node_id} is drained, and {counted(node.replicas, 'replica')} will move")
        return
    print_table(
        ["TOPIC", "PARTITION", "FROM", "TO", "REASON", "STATE"],
        [
            [
                move.topic,
                move.partition,
                _ids(_without(move.replicas, move.target)) or "-",
                _ids(_without(move.target, move.replicas)) or "-",
                move.reason,
                _progress(move),
            ]
            for move in found.moves
        ],
    )


def _progress(move: "MoveStatus") -> str:
    words = [move.state]
    for copy in move.copies:
        if copy.total_bytes and move.state == "copying":
            words.append(
                f"node {copy.node_id} has {_size(copy.copied_bytes)} of {_size(copy.total_bytes)}, "
                f"{_size(copy.bytes_per_second)}/s{_time_left(copy.total_bytes - copy.copied_bytes, copy.bytes_per_second)}"
            )
    if move.waits:
        words.append(f"waits: {move.waits}")
    return "; ".join(words)


def _time_left(size: int, rate: int) -> str:
    return f", {max(1, round(size / rate))}s left" if rate and size > 0 else ""


def _size(number: int) -> str:
    size = float(number)
    for unit in _SIZES[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_SIZES[-1]}"


def _json_of_plan(planned: "PlanMovesResponse") -> dict[str, Any]:
    return {"moves": [_json_of_planned(each) for each in planned.moves], "left_out": list(planned.left_out)}


def _json_of_planned(each: "PlannedMove") -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "reason": each.reason,
        "replicas": list(each.replicas),
        "target": list(each.target),
    }


def _json_of_move(move: "MoveStatus") -> dict[str, Any]:
    from pixy.plain_messages import plain

    shown: dict[str, Any] = plain(move)
    return shown


def _without(some: Iterable[int], others: Sequence[int]) -> list[int]:
    return [each for each in some if each not in others]


def _ids(node_ids: Iterable[int]) -> str:
    return ",".join(map(str, node_ids))
