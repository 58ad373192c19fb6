"""`pixy cluster drain`, `move`, `rebalance`, `cancel`, `moves`, and `remove` with them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from pixy.cli import main
from pixy.cluster import (
    CancelPlan,
    ClusterStatus,
    DrainPlan,
    MovePlan,
    MovesPlanned,
    NodeStatus,
    RaftGroupStatus,
    RebalancePlan,
    Topic,
)
from pixy.cluster.peering.move_planner import PlannedMove
from pixy.cluster.status import CopyStatus, MemberState, MemberStatus, MoveStatus
from pixy.errors import FailedPrecondition
from pixy.proto.state_pb2 import MoveReason
from pixy.records import TopicPartition
from tests.fakes.backend import FakeBackend
from tests.fakes.server import FakeServer, serve_cluster

RunOnServer = Callable[..., Awaitable[Result]]

MOVE, REBALANCE, CANCEL = (
    MoveReason.MOVE_REASON_MOVE,
    MoveReason.MOVE_REASON_REBALANCE,
    MoveReason.MOVE_REASON_CANCEL,
)
DRAIN = MoveReason.MOVE_REASON_DRAIN
TOPIC = Topic("orders", b"i" * 16, 1, {}, tuple(range(1000, 1030)), ((1, 2, 3),) * 30)


def planned(reason: MoveReason.ValueType, count: int = 1) -> list[PlannedMove]:
    return [PlannedMove(TOPIC, number, reason, (1, 2, 4)) for number in range(count)]


NODES = tuple(
    NodeStatus(node_id, f"10.0.0.{node_id}:19094", is_self=node_id == 1, heard_s=0.1, replicas=30)
    for node_id in (1, 2, 3, 4)
)
MEMBERS = (
    MemberStatus(1, 9, 0, MemberState.LEADER),
    MemberStatus(2, 9, 0, MemberState.REPLICATING),
    MemberStatus(3, 9, 0, MemberState.REPLICATING),
    MemberStatus(4, 0, 9, MemberState.COPY),
)
GROUP = RaftGroupStatus(1000, "orders-0", 1, 5, (1, 2, 3), (4,), members=MEMBERS)
MOVING = MoveStatus(
    1000,
    TopicPartition("orders", 0),
    "drain",
    (1, 2, 3),
    (1, 2, 4),
    copies=(CopyStatus(4, 3 << 20, 1 << 30, 64 << 20),),
)
STATUS = ClusterStatus(bytes(16), NODES, (GROUP,), can_move=True)
ON_THE_WAY = replace(STATUS, moves=(MOVING,))


@pytest.fixture
async def served() -> AsyncIterator[FakeServer]:
    async with serve_cluster() as served:
        served.backend.status = STATUS
        yield served


@pytest.fixture
def run_on(served: FakeServer) -> RunOnServer:
    """Runs a client command against the server."""

    async def invoke(*args: str) -> Result:
        return await asyncio.to_thread(
            CliRunner().invoke, main, [*args], env={"PIXY_ADDRESS": served.address}
        )

    return invoke


# --- drain ----------------------------------------------------------------------------------------


async def test_a_drain_shows_its_plan_and_is_told(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.planned = MovesPlanned(planned(DRAIN), ["2 partitions more will follow"])
    result = await run_on("cluster", "drain", "3", "--yes")
    assert result.stdout == (
        "TOPIC   PARTITION  REPLICAS  MOVES TO  REASON\n"
        "orders          0  1,2,3     1,2,4     drain\n"
        "2 partitions more will follow\n"
        "node 3 is drained: pixy cluster moves --watch waits until its replicas have moved\n"
    )
    assert served.backend.move_requests == [DrainPlan(3)]
    assert [node.draining for node in served.backend.status.nodes] == [False, False, True, False]
    assert (await run_on("cluster", "undrain", "3")).stdout == "node 3 gets replicas again\n"
    assert not any(node.draining for node in served.backend.status.nodes)


async def test_a_dry_run_drains_nothing(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.planned = MovesPlanned(planned(DRAIN, 25))
    result = await run_on("cluster", "drain", "3", "--dry-run")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "and 5 partitions more")
    assert not any(node.draining for node in served.backend.status.nodes)
    shown = json.loads((await run_on("cluster", "drain", "3", "--dry-run", "--json")).stdout)
    assert (shown["node"], len(shown["moves"]), shown["draining"]) == (3, 25, False)


@pytest.mark.parametrize(
    "command",
    [("drain", "3"), ("move", "orders/0", "3", "4"), ("rebalance",), ("cancel", "--all"), ("remove", "3")],
)
async def test_without_a_terminal_moves_have_to_be_confirmed(
    run_on: RunOnServer, served: FakeServer, command: Sequence[str]
) -> None:
    served.backend.planned = MovesPlanned(planned(MOVE))
    result = await run_on("cluster", *command)
    assert result.exit_code == 2
    assert "standard input is not a terminal: confirm with --yes" in result.stderr
    assert (served.backend.begun, served.backend.left) == ([], [])
    assert not any(node.draining for node in served.backend.status.nodes)


@pytest.mark.parametrize(
    "command", [("drain", "3", "--yes"), ("rebalance", "--yes"), ("cancel", "--all", "--yes")]
)
async def test_where_replicas_cannot_move_the_reason_is_told(
    run_on: RunOnServer, served: FakeServer, command: Sequence[str]
) -> None:
    served.backend.failures["plan_moves"] = FailedPrecondition("that needs feature level 9")
    result = await run_on("cluster", *command)
    assert (result.exit_code, result.stderr) == (
        1,
        "pixy: FAILED_PRECONDITION: that needs feature level 9\n",
    )


# --- moves of a plan ------------------------------------------------------------------------------


async def test_one_replica_is_moved(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.planned = MovesPlanned(planned(MOVE))
    result = await run_on("cluster", "move", "orders/0", "3", "4", "--yes")
    assert result.stdout.splitlines()[-1] == "1 move begun: pixy cluster moves shows them"
    assert served.backend.move_requests == [MovePlan(TopicPartition("orders", 0), 3, 4)]
    assert served.backend.begun == [(MOVE, [each.message() for each in planned(MOVE)])]


async def test_moves_that_have_not_begun_are_named(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.planned = MovesPlanned(planned(REBALANCE, 2))
    served.backend.refused_moves = ["partition 1 of topic orders: it has moved"]
    result = await run_on("cluster", "rebalance", "--yes")
    assert result.stdout.splitlines()[-2:] == [
        "not moved: partition 1 of topic orders: it has moved",
        "1 move begun: pixy cluster moves shows them",
    ]
    shown = json.loads((await run_on("cluster", "rebalance", "--yes", "--json")).stdout)
    assert shown["refused"] == ["partition 1 of topic orders: it has moved"]
    assert shown["moves"][0] == {
        "topic": "orders",
        "partition": 0,
        "reason": "rebalance",
        "replicas": [1, 2, 3],
        "target": [1, 2, 4],
    }


async def test_a_rebalance_can_be_tried_and_may_have_nothing_to_do(
    run_on: RunOnServer, served: FakeServer
) -> None:
    assert (await run_on("cluster", "rebalance")).stdout == "the nodes have as many replicas as they can\n"
    served.backend.planned = MovesPlanned(planned(REBALANCE))
    assert (await run_on("cluster", "rebalance", "--dry-run")).exit_code == 0
    assert served.backend.begun == []
    assert served.backend.move_requests == [RebalancePlan()] * 2


async def test_moves_are_taken_back(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.planned = MovesPlanned(planned(CANCEL), ["partition 1 goes on"])
    result = await run_on("cluster", "cancel", "orders/0", "--yes")
    assert "partition 1 goes on\n" in result.stdout
    await run_on("cluster", "cancel", "--all", "--yes")
    assert served.backend.move_requests == [CancelPlan(TopicPartition("orders", 0)), CancelPlan()]
    assert [reason for reason, _ in served.backend.begun] == [CANCEL, CANCEL]


@pytest.mark.parametrize(
    "command",
    [
        ("cancel",),
        ("cancel", "orders/0", "--all"),
        ("move", "orders", "1", "2"),
        ("move", "/1", "1", "2"),
        ("move", "orders/-1", "1", "2"),
        ("move", "orders/0", "0", "2"),
    ],
)
async def test_partitions_and_nodes_have_to_be_named(run_on: RunOnServer, command: Sequence[str]) -> None:
    assert (await run_on("cluster", *command)).exit_code == 2


# --- what moves -----------------------------------------------------------------------------------


async def test_moves_are_shown_with_how_far_they_are(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.status = ON_THE_WAY
    assert (await run_on("cluster", "moves")).stdout == (
        "TOPIC   PARTITION  FROM  TO  REASON  STATE\n"
        "orders          0  3     4   drain   copying; node 4 has 3.0 MiB of 1.0 GiB, 64.0 MiB/s, 16s left\n"
    )
    (shown,) = json.loads((await run_on("cluster", "moves", "--json")).stdout)["moves"]
    assert (shown["state"], shown["copies"][0]["copied_bytes"]) == ("copying", 3 << 20)
    status = await run_on("cluster", "status")
    assert "1 partition on the way to other nodes (pixy cluster moves)\n" in status.stdout


async def test_what_a_move_waits_for_is_shown(run_on: RunOnServer, served: FakeServer) -> None:
    down = replace(ON_THE_WAY, nodes=(*NODES[:3], replace(NODES[3], up=False)))
    served.backend.status = down
    assert "copying; node 4 has" in (shown := (await run_on("cluster", "moves")).stdout)
    assert "waits: node 4, which is to have a replica, is down" in shown


async def test_nothing_moves_or_can(run_on: RunOnServer, served: FakeServer) -> None:
    assert (await run_on("cluster", "moves", "--watch")).stdout == "nothing moves\n"
    served.backend.status = replace(STATUS, can_move=False)
    assert (await run_on("cluster", "moves")).stdout.startswith("replicas do not move: ")


class Draining(FakeBackend):
    """A backend whose node 3 is drained: its moves end one look after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def cluster_status(self) -> ClusterStatus:
        """One more look."""
        self.looks += 1
        replicas, kept = (5, 1, 1, 1)[min(self.looks - 1, 3)], 1
        third = replace(NODES[2], draining=True, replicas=replicas, kept=kept)
        moves = (MOVING,) if self.looks == 2 else ()
        group = GROUP
        if self.left:
            group = replace(GROUP, voters=(1, 2, 4), learners=(), members=(*MEMBERS[:2], MEMBERS[3]))
        return replace(STATUS, nodes=(*NODES[:2], third, NODES[3]), moves=moves, groups=(group,))

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        """It is drained already."""

    async def remove_node(self, node_id: int) -> None:
        """It leaves."""
        assert self.looks > 2
        self.left.append(("remove", node_id))


@pytest.mark.slow
async def test_moves_are_watched_until_a_drained_node_has_only_what_it_keeps() -> None:
    async with serve_cluster(Draining()) as served:
        command = ["cluster", "moves", "--watch", "--address", served.address]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert isinstance(served.backend, Draining)
        assert served.backend.looks == 3
    lines = result.stdout.splitlines()
    assert lines[:2] == ["nothing moves", "node 3 is drained, and 5 replicas will move"]
    assert lines[-1] == "nothing moves"


@pytest.mark.slow
async def test_a_node_that_is_removed_is_drained_first() -> None:
    async with serve_cluster(Draining()) as served:
        command = ["cluster", "remove", "3", "--yes", "--address", served.address]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert served.backend.left == [("remove", 3)]
        assert served.backend.move_requests == [DrainPlan(3)]
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["1 replica of node 3 on the way to other nodes", "removed node 3"]


class Lagging(Draining):
    """The same, and the first node that answers does not know of the drain yet."""

    async def cluster_status(self) -> ClusterStatus:
        """One more look."""
        status = await super().cluster_status()
        if self.looks != 2:
            return status
        return replace(status, nodes=tuple(replace(node, draining=False) for node in status.nodes))


@pytest.mark.slow
async def test_a_node_that_lags_does_not_end_a_removal() -> None:
    async with serve_cluster(Lagging()) as served:
        command = ["cluster", "remove", "3", "--yes", "--address", served.address]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert served.backend.left == [("remove", 3)]
    assert (result.exit_code, result.stdout) == (0, "removed node 3\n")


class Undrained(Draining):
    """Node 3 is undrained meanwhile."""

    async def cluster_status(self) -> ClusterStatus:
        """One more look."""
        return STATUS


@pytest.mark.slow
async def test_a_node_that_is_undrained_meanwhile_is_not_removed() -> None:
    async with serve_cluster(Undrained()) as served:
        command = ["cluster", "remove", "3", "--yes", "--address", served.address]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert served.backend.left == []
    assert (result.exit_code, result.stderr) == (1, "pixy: node 3 is drained no more, and was not removed\n")


async def test_a_drained_node_is_shown_so(run_on: RunOnServer, served: FakeServer) -> None:
    for kept, state in ((0, "up, drains"), (30, "up, drained")):
        third = replace(NODES[2], draining=True, kept=kept)
        served.backend.status = replace(STATUS, nodes=(*NODES[:2], third, NODES[3]))
        assert f"   3  {state} " in (await run_on("cluster", "status")).stdout
