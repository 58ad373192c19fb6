import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pixy.cli import main
from pixy.cluster import ClusterStatus, NodeStatus, RaftGroupStatus
from pixy.cluster.status import MemberState, MemberStatus
from pixy.errors import FailedPrecondition, Unavailable
from tests.fakes.backend import FakeBackend
from tests.fakes.server import FakeServer, serve_cluster

LEADER, REPLICATING, COPY = MemberState.LEADER, MemberState.REPLICATING, MemberState.COPY

RunOnServer = Callable[..., Awaitable[Result]]


def group(
    raft_group: int, name: str, leader: int = 1, *, behind: int = 0, state: MemberState = REPLICATING
) -> RaftGroupStatus:
    members = (
        MemberStatus(1, 50, 0, LEADER),
        MemberStatus(2, 50, 0, REPLICATING),
        MemberStatus(3, 50 - behind, behind, state),
    )
    return RaftGroupStatus(raft_group, name, leader, 5, (1, 2, 3), members=members if leader else ())


NODES = (
    NodeStatus(1, "10.0.0.1:19094", "10.0.0.1:19091", "a", "0.1.0", 3, is_self=True),
    NodeStatus(2, "10.0.0.2:19094", "10.0.0.2:19091", "b", "0.1.0", 4, heard_s=0.2, clock_offset_ms=-1500),
    NodeStatus(3, "10.0.0.3:19094", "10.0.0.3:19091", "", "0.1.0", 12, heard_s=0.1),
)
WELL = ClusterStatus(bytes(range(16)), NODES, (group(1, "metadata"), group(1000, "t-0"), group(1001, "t-1")))
DOWN = replace(
    WELL,
    nodes=(*NODES[:2], replace(NODES[2], up=False, heard_s=12.0)),
    groups=(group(1, "metadata", behind=7), group(1000, "t-0", 0), group(1001, "t-1", state=COPY)),
)


@pytest.fixture
async def served() -> AsyncIterator[FakeServer]:
    async with serve_cluster() as served:
        served.backend.status = WELL
        yield served


@pytest.fixture
def run_on(served: FakeServer) -> RunOnServer:
    """Runs a client command against the server."""

    async def invoke(*args: str) -> Result:
        variables = {"PIXY_ADDRESS": served.address}
        return await asyncio.to_thread(CliRunner().invoke, main, ["cluster", *args], env=variables)

    return invoke


# --- status ---------------------------------------------------------------------------------------


async def test_a_cluster_that_is_well_is_shown_without_its_partitions(run_on: RunOnServer) -> None:
    result = await run_on("status")
    assert result.stdout == (
        "NODE  STATE        ADDRESS         GRPC ADDRESS    RACK  RELEASE  START  CLOCK  LEADS\n"
        "   1  up, answers  10.0.0.1:19094  10.0.0.1:19091  a     0.1.0        3  -          3\n"
        "   2  up           10.0.0.2:19094  10.0.0.2:19091  b     0.1.0        4  -1.5s      0\n"
        "   3  up           10.0.0.3:19094  10.0.0.3:19091  -     0.1.0       12  -          0\n"
        "\n"
        "RAFT GROUP  LEADER  TERM  VOTERS  LEARNERS  BEHIND\n"
        "metadata    1          5  1,2,3   -         -\n"
        "and 2 partitions without a problem (--all)\n"
        "\n"
        "no problems\n"
    )
    assert result.exit_code == 0


async def test_all_partitions_can_be_shown(run_on: RunOnServer) -> None:
    lines = (await run_on("status", "--all")).stdout.splitlines()
    assert [line.split()[0] for line in lines[6:9]] == ["metadata", "t-0", "t-1"]
    assert "--all" not in lines[9]


async def test_problems_are_named_with_the_partitions_that_have_them(
    run_on: RunOnServer, served: FakeServer
) -> None:
    served.backend.status = DOWN
    result = await run_on("status")
    assert "   3  down for 12s  10.0.0.3:19094" in result.stdout
    assert result.stdout.partition("RAFT GROUP")[2] == (
        "  LEADER  TERM  VOTERS  LEARNERS  BEHIND\n"
        "metadata    1          5  1,2,3   -         3 by 7\n"
        "t-0         none       5  1,2,3   -         -\n"
        "t-1         1          5  1,2,3   -         3 copy\n"
        "\n"
        "problem: node 3 (10.0.0.3:19094) is not reachable: not heard of for 12 s\n"
        "problem: no leader for raft group t-0: an election is due\n"
    )
    assert result.exit_code == 1


async def test_a_node_that_is_reached_through_another_is_shown_so(
    run_on: RunOnServer, served: FakeServer
) -> None:
    nodes = (*WELL.nodes[:2], replace(WELL.nodes[2], through=2))
    served.backend.status = replace(WELL, nodes=nodes, cut_links=((1, 3),))
    result = await run_on("status")
    assert "   3  up, through 2  10.0.0.3:19094" in result.stdout
    assert (
        "problem: nodes 1 and 3 have no connection to each other, and go through other nodes" in result.stdout
    )
    assert result.exit_code == 1


async def test_a_joint_configuration_is_shown_with_both_halves(
    run_on: RunOnServer, served: FakeServer
) -> None:
    joint = replace(group(1, "metadata"), learners=(4,), voters_outgoing=(1, 2))
    served.backend.status = replace(WELL, groups=(joint,))
    assert "metadata    1          5  1,2,3 (was 1,2)  4         -" in (await run_on("status")).stdout


async def test_the_status_is_printed_as_json(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.status = DOWN
    result = await run_on("status", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert list(found) == [
        *("cluster_id", "node_id", "nodes", "groups", "under_replicated", "not_ready", "problems"),
        *("can_move", "moves"),
    ]
    assert found["cluster_id"] == bytes(range(16)).hex()
    assert found["nodes"][2] == {
        "node_id": 3,
        "address": "10.0.0.3:19094",
        "grpc_address": "10.0.0.3:19091",
        "rack": "",
        "version": "0.1.0",
        "incarnation": 12,
        "up": False,
        "through": None,
        "silent_ms": 12_000,
        "clock_offset_ms": 0,
        "problem": "",
        "troubles": [],
        "removed": False,
        "reasons_to_stay": [],
        "unreplicated": "",
        "disk_bytes": None,
        "disk_free_bytes": None,
        "draining": False,
        "replicas": 0,
        "kept_replicas": 0,
    }
    assert found["nodes"][0]["silent_ms"] is None
    assert found["groups"][0] == {
        "raft_group": 1,
        "name": "metadata",
        "is_partition": False,
        "leader": 1,
        "term": 5,
        "voters": [1, 2, 3],
        "learners": [],
        "voters_outgoing": [],
        "members": [
            {"node_id": 1, "match": 50, "behind": 0, "state": "leader"},
            {"node_id": 2, "match": 50, "behind": 0, "state": "replicating"},
            {"node_id": 3, "match": 43, "behind": 7, "state": "replicating"},
        ],
        "damaged": [],
    }
    assert len(found["problems"]) == 2


@pytest.mark.process
async def test_watch_shows_the_status_again_until_ctrl_c(served: FakeServer) -> None:
    command = [sys.executable, "-m", "pixy", "cluster", "status", "--watch", "--json"]
    environment = {**os.environ, "PIXY_ADDRESS": served.address}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert json.loads(await process.stdout.readline())["problems"] == []
        served.backend.status = DOWN
        while not json.loads(await process.stdout.readline())["problems"]:
            pass
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130


# --- safe to stop ---------------------------------------------------------------------------------


async def test_a_node_that_can_be_stopped_is_exit_code_0(run_on: RunOnServer) -> None:
    result = await run_on("status", "--safe-to-stop", "2")
    assert (result.exit_code, result.stdout) == (0, "node 2 can be stopped\n")


async def test_a_node_that_has_to_stay_is_exit_code_1(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.status = replace(DOWN, groups=(group(1, "metadata"),))
    result = await run_on("status", "--safe-to-stop", "2")
    assert (result.exit_code, result.stdout) == (
        1,
        "node 2 must not be stopped: raft group metadata: of voters 1, 2 and 3 only 1 would be up and caught up\n",
    )
    result = await run_on("status", "--safe-to-stop", "3")
    assert (result.exit_code, result.stdout) == (0, "node 3 can be stopped: it is not up\n")


async def test_topics_with_too_few_replicas_may_stop_if_that_is_accepted(
    run_on: RunOnServer, served: FakeServer
) -> None:
    lone = RaftGroupStatus(1000, "orders-0", 2, 5, (2,), members=(MemberStatus(2, 50, 0, LEADER),))
    served.backend.status = replace(WELL, groups=(group(1, "metadata"), lone))
    command = ("status", "--safe-to-stop", "2")
    result = await run_on(*command)
    assert result.exit_code == 1
    assert result.stdout.startswith("node 2 must not be stopped: topic orders would stop until it is back: ")
    assert "go on with --accept-unreplicated" in result.stdout
    result = await run_on(*command, "--accept-unreplicated")
    assert (result.exit_code, result.stdout) == (0, "node 2 can be stopped\n")
    result = await run_on(*command, "--accept-unreplicated", "--watch")
    assert (result.exit_code, result.stdout) == (0, "node 2 can be stopped\n")
    served.backend.status = replace(DOWN, groups=(group(1, "metadata"), lone))
    result = await run_on(*command, "--accept-unreplicated")
    assert (result.exit_code, result.stdout.count("must not be stopped")) == (1, 1)
    assert (await run_on("status", "--accept-unreplicated")).exit_code == 2


async def test_safety_is_printed_as_json(run_on: RunOnServer) -> None:
    result = await run_on("status", "--safe-to-stop", "2", "--json")
    assert json.loads(result.stdout) == {"node": 2, "safe": True, "reasons": []}


async def test_self_is_the_node_that_answers(run_on: RunOnServer, served: FakeServer) -> None:
    assert (await run_on("status", "--safe-to-stop", "self")).stdout == "node 1 can be stopped\n"
    served.backend.status = ClusterStatus(b"", (NodeStatus(0, "", is_self=True),), (), (), "waits for others")
    result = await run_on("status", "--safe-to-stop", "self")
    assert (result.exit_code, result.stderr) == (1, "pixy: the node that answers belongs to no cluster yet\n")


@pytest.mark.parametrize("node", ["x", "0", "-1", "1.5", "99999999999", "", "self"])
async def test_what_is_no_node_is_an_error_of_usage(run_on: RunOnServer, node: str) -> None:
    for command in (("remove", "--yes", "--"), ("forget", "--yes", "--")):
        result = await run_on(*command, node)
        assert result.exit_code == 2
        assert f"{node!r} is not the id of a node, a number from 1 on" in result.stderr
    if node != "self":
        result = await run_on("status", f"--safe-to-stop={node}")
        assert result.exit_code == 2
        assert "a number from 1 on, or self" in result.stderr


async def test_an_unknown_node_is_an_error(run_on: RunOnServer) -> None:
    result = await run_on("status", "--safe-to-stop", "9")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "pixy: the cluster has no node 9\n")


class Recovering(FakeBackend):
    """A cluster that cannot be asked at first, and then misses a node."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def cluster_status(self) -> ClusterStatus:
        self.asked += 1
        if self.asked == 1:
            raise Unavailable("not yet")
        return self.status if self.asked == 2 else WELL


@pytest.mark.slow
async def test_with_watch_the_command_returns_once_the_node_can_be_stopped() -> None:
    async with serve_cluster(Recovering()) as served:
        served.backend.status = replace(DOWN, groups=(group(1, "metadata"),))
        command = ["cluster", "status", "--safe-to-stop", "2", "--watch", "--address", served.address]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert (result.exit_code, result.stderr) == (0, "pixy: UNAVAILABLE: not yet\n")
    # What the server logs meanwhile, on another thread, is captured, too.
    first, second = (line for line in result.stdout.splitlines() if line.startswith("node 2 "))
    assert first.startswith("node 2 must not be stopped")
    assert second == "node 2 can be stopped"


# --- nodes that leave -----------------------------------------------------------------------------


async def test_a_node_is_removed_or_forgotten(run_on: RunOnServer, served: FakeServer) -> None:
    assert (await run_on("remove", "2", "--yes")).stdout == "removed node 2\n"
    result = await run_on("forget", "3", "--yes", "--json")
    assert json.loads(result.stdout) == {"node": 3}
    assert served.backend.left == [("remove", 2), ("forget", 3)]


class Down(FakeBackend):
    """A backend whose node 3 is down, and leaves."""

    asked = 0

    async def remove_node(self, node_id: int) -> None:
        """Remove it; other voters come later."""

    async def cluster_status(self) -> ClusterStatus:
        self.asked += 1
        nodes = (*NODES[:2], replace(NODES[2], up=False))
        if self.asked < 3:
            return replace(WELL, nodes=nodes)
        left = tuple(replace(each, voters=(1, 2), members=each.members[:2]) for each in WELL.groups)
        return replace(WELL, nodes=nodes, groups=left)


@pytest.mark.slow
async def test_the_removal_of_a_node_that_is_down_speaks_of_no_stop() -> None:
    async with serve_cluster(Down()) as served:
        command = ["cluster", "remove", "3", "--yes", "--address", served.address]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert result.exit_code == 0
    assert result.stdout == "removed node 3\nits raft groups get other voters\nnode 3 has left\n"


class Leaving(FakeBackend):
    """A cluster whose raft groups have a removed node for some time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def remove_node(self, node_id: int) -> None:
        """Remove it; other voters come later."""

    async def cluster_status(self) -> ClusterStatus:
        self.asked += 1
        if self.asked == 2:
            return replace(WELL, nodes=(*NODES[:2], replace(NODES[2], removed=True)))
        left = tuple(replace(each, voters=(1, 2), members=each.members[:2]) for each in WELL.groups)
        if self.asked == 1:
            return replace(WELL, nodes=NODES[:1], groups=(), not_ready="the node is starting")
        return replace(WELL, nodes=NODES[:2], groups=left)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_the_removal_ends_when_no_raft_group_has_the_node(flags: tuple[str, ...]) -> None:
    async with serve_cluster(Leaving()) as served:
        command = ["cluster", "remove", "3", "--yes", "--address", served.address, *flags]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert isinstance(served.backend, Leaving)
        assert served.backend.asked == 3
    assert result.exit_code == 0
    expected = (
        '{"node": 3}\n'
        if flags
        else "removed node 3\nits raft groups get other voters; do not stop it yet\nnode 3 can be stopped\n"
    )
    assert result.stdout == expected


async def test_a_removed_node_is_shown_so(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.status = replace(WELL, nodes=(*NODES[:2], replace(NODES[2], removed=True)))
    assert "   3  up, removed  10.0.0.3:19094" in (await run_on("status")).stdout


@pytest.mark.parametrize("command", ["remove", "forget"])
async def test_without_a_terminal_leaving_has_to_be_confirmed(
    run_on: RunOnServer, served: FakeServer, command: str
) -> None:
    result = await run_on(command, "2")
    assert result.exit_code == 2
    assert "standard input is not a terminal: confirm with --yes" in result.stderr
    assert served.backend.left == []


async def test_an_error_is_one_line_and_exit_code_1(run_on: RunOnServer) -> None:
    result = await run_on("remove", "9", "--yes")
    assert (result.exit_code, result.stderr) == (1, "pixy: NOT_FOUND: no node 9\n")


async def test_a_kafka_cluster_has_tools_of_its_own(run_on: RunOnServer, served: FakeServer) -> None:
    served.backend.failures["cluster_status"] = FailedPrecondition("this is a Kafka cluster")
    result = await run_on("status")
    assert (result.exit_code, result.stderr) == (1, "pixy: FAILED_PRECONDITION: this is a Kafka cluster\n")
