import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from pixy.backend import TopicPartition
from pixy.cli import main
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_cluster_pb2 as cluster_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.conformance.staged import piece_of
from tests.fakes.server import FakeServer, serve_cluster

from .conftest import Run
from .fake_server import FakePixy, Refused

SECONDS = 60.0


@pytest.fixture(autouse=True)
def silent_server() -> Iterator[None]:
    """Servers of these tests share standard output with the commands."""
    with capture_logs():
        yield


METADATA = pb.GetTopicMetadataRs(
    version=1,
    config={"retention_ms": "604800000"},
    partitions=[
        pb.PartitionMetadata(partition=0, leader=1, replicas=[1, 2], isr=[1]),
        pb.PartitionMetadata(partition=1, leader=-1, replicas=[1, 2], isr=[]),
    ],
)

FOO = topics_pb.TopicDescription(
    topic="foo",
    topic_id=bytes(range(16)),
    version=1,
    config={"segment_bytes": "1048576", "retention_ms": "604800000"},
    partitions=[
        topics_pb.PartitionDescription(
            partition=0, leader=1, replicas=[1, 2], isr=[1], offsets=topics_pb.OffsetRange(begin=5, end=120)
        ),
        topics_pb.PartitionDescription(partition=1, leader=-1, replicas=[1, 2], isr=[]),
    ],
)


def test_topics_list_counts_partitions(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs(topics={"foo": METADATA, "a": pb.GetTopicMetadataRs()})
    assert run("topics", "list").stdout == "TOPIC  PARTITIONS\na               0\nfoo             2\n"
    assert json.loads(run("topics", "list", "--json").stdout)["foo"] == {
        "version": 1,
        "config": {"retention_ms": "604800000"},
        "partitions": [
            {"partition": 0, "leader": 1, "replicas": [1, 2], "isr": [1]},
            {"partition": 1, "leader": -1, "replicas": [1, 2], "isr": []},
        ],
    }


def test_an_empty_topics_list_is_a_heading(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    assert run("topics", "list").stdout == "TOPIC  PARTITIONS\n"
    assert json.loads(run("topics", "list", "--json").stdout) == {}


# --- show -----------------------------------------------------------------------------------------


def test_topics_show_prints_partitions_with_offsets_and_options(pixy: FakePixy, run: Run) -> None:
    pixy.answers["DescribeTopic"] = FOO
    assert run("topics", "show", "foo", "--cluster", "c").stdout == (
        "PARTITION  LEADER  REPLICAS  IN SYNC  BEGIN  END\n"
        "        0  1       1,2       1        5      120\n"
        "        1  none    1,2                -      -\n"
        "\n"
        "OPTION         VALUE\n"
        "retention_ms   604800000\n"
        "segment_bytes  1048576\n"
    )
    assert pixy.calls == [("DescribeTopic", topics_pb.DescribeTopicRequest(cluster="c", topic="foo"))]


def test_topics_show_prints_which_partitions_move(pixy: FakePixy, run: Run) -> None:
    moving = topics_pb.TopicDescription()
    moving.CopyFrom(FOO)
    moving.partitions[1].moves_to.extend([2, 3])
    pixy.answers["DescribeTopic"] = moving
    pixy.answers["Status"] = cluster_pb.StatusResponse(
        moves=[
            cluster_pb.MoveStatus(topic="other", partition=1, target=[1], state="joint"),
            cluster_pb.MoveStatus(
                topic="foo",
                partition=1,
                target=[2, 3],
                reason="move",
                state="learner",
                waits="node 3 is down",
            ),
        ]
    )
    assert run("topics", "show", "foo").stdout.startswith(
        "PARTITION  LEADER  REPLICAS  IN SYNC  MOVES TO  BEGIN  END\n"
        "        0  1       1,2       1        -         5      120\n"
        "        1  none    1,2                2,3       -      -\n"
        "\n"
        "partition 1 moves to 2,3 (move): learner; waits: node 3 is down\n"
        "\n"
        "OPTION "
    )
    partitions = json.loads(run("topics", "show", "foo", "--json").stdout)["partitions"]
    assert [partition.get("moves_to") for partition in partitions] == [None, [2, 3]]


def test_topics_show_prints_json(pixy: FakePixy, run: Run) -> None:
    pixy.answers["DescribeTopic"] = FOO
    assert json.loads(run("topics", "show", "foo", "--json").stdout) == {
        "topic": "foo",
        "topic_id": "000102030405060708090a0b0c0d0e0f",
        "version": 1,
        "config": {"retention_ms": "604800000", "segment_bytes": "1048576"},
        "partitions": [
            {"partition": 0, "leader": 1, "replicas": [1, 2], "isr": [1], "begin": 5, "end": 120},
            {"partition": 1, "leader": -1, "replicas": [1, 2], "isr": []},
        ],
    }


# --- create, alter, delete: on a cluster in memory ------------------------------------------------

RunOnServer = Callable[..., Awaitable[Result]]


@pytest.fixture
async def served() -> AsyncIterator[FakeServer]:
    async with serve_cluster() as served:
        yield served


@pytest.fixture
def run_on(served: FakeServer) -> RunOnServer:
    """Runs a client command against the server."""

    async def invoke(*args: str) -> Result:
        variables = {"PIXY_ADDRESS": served.address}
        return await asyncio.to_thread(CliRunner().invoke, main, args, env=variables)

    return invoke


async def test_a_topic_is_created_with_the_clusters_partitions(
    run_on: RunOnServer, served: FakeServer
) -> None:
    result = await run_on("topics", "create", "orders")
    assert (result.exit_code, result.stdout) == (0, "created orders: 3 partitions\n")
    assert len((await served.backend.describe_topic("orders")).partitions) == 3


async def test_a_topic_is_created_with_partitions_and_options(
    run_on: RunOnServer, served: FakeServer
) -> None:
    options = ("--config", "retention_ms=168h", "--config", "segment.bytes=64MiB")
    result = await run_on("topics", "create", "orders", "--partitions", "1", *options)
    assert result.stdout == "created orders: 1 partition, retention_ms=604800000, segment_bytes=67108864\n"
    created = await served.backend.describe_topic("orders")
    assert created.config == {"retention_ms": "604800000", "segment_bytes": "67108864"}


async def test_a_topic_is_altered(run_on: RunOnServer, served: FakeServer) -> None:
    await served.backend.create_topic("orders", 1, {"retention_ms": "1", "segment_ms": "2"})
    options = ("--config", "segment_ms=1.5s", "--unset", "retention.ms")
    result = await run_on("topics", "alter", "orders", "--partitions", "2", *options)
    assert (result.exit_code, result.stdout) == (0, "changed orders: 2 partitions, segment_ms=1500\n")
    altered = await served.backend.describe_topic("orders")
    assert (len(altered.partitions), altered.config) == (2, {"segment_ms": "1500"})


async def test_a_topic_with_staged_messages_is_deleted_by_force(
    run_on: RunOnServer, served: FakeServer
) -> None:
    await run_on("topics", "create", "orders", "--partitions", "1")
    await served.backend.stage("sink", "stage", 0, piece_of({TopicPartition("orders", 0): [b"1"]}))
    refused = await run_on("topics", "delete", "orders", "--yes")
    assert refused.exit_code == 1
    assert "FAILED_PRECONDITION" in refused.stderr
    assert "sink" in refused.stderr
    forced = await run_on("topics", "delete", "orders", "--yes", "--force")
    assert (forced.exit_code, forced.stdout) == (0, "deleted orders\n")


async def test_a_topic_is_deleted(run_on: RunOnServer, served: FakeServer) -> None:
    await served.backend.create_topic("orders", 1)
    result = await run_on("topics", "delete", "orders", "--yes")
    assert (result.exit_code, result.stdout) == (0, "deleted orders\n")
    assert await served.backend.list_topics() == []


async def test_results_are_printed_as_json(run_on: RunOnServer) -> None:
    created = await run_on(
        "topics", "create", "orders", "--partitions", "1", "--config", "segment_ms=1", "--json"
    )
    assert json.loads(created.stdout) == {
        "topic": "orders",
        "topic_id": f"{1:032x}",
        "version": 1,
        "config": {"segment_ms": "1"},
        "partitions": [{"partition": 0, "leader": 1, "replicas": [1], "isr": [1]}],
    }
    altered = await run_on("topics", "alter", "orders", "--partitions", "2", "--json")
    assert [each["partition"] for each in json.loads(altered.stdout)["partitions"]] == [0, 1]
    deleted = await run_on("topics", "delete", "orders", "--yes", "--json")
    assert json.loads(deleted.stdout) == {"topic": "orders"}


async def test_offsets_of_a_topic_are_shown(run_on: RunOnServer, served: FakeServer) -> None:
    await run_on("topics", "create", "orders", "--partitions", "1")
    async with grpc.aio.insecure_channel(served.address) as channel:
        await KafkaPixyStub(channel).Produce(pb.ProdRq(topic="orders", message=b"m"))
    (partition,) = json.loads((await run_on("topics", "show", "orders", "--json")).stdout)["partitions"]
    assert (partition["begin"], partition["end"]) == (0, 1)


async def test_an_error_of_the_daemon_is_one_line_and_exit_code_1(run_on: RunOnServer) -> None:
    await run_on("topics", "create", "orders")
    for args, line in [
        (("create", "orders"), "ALREADY_EXISTS: topic orders exists already"),
        (("create", "a b"), "INVALID_ARGUMENT: invalid topic name 'a b'"),
        (("create", "new", "--config", "nosuch=1"), "INVALID_ARGUMENT: unknown option nosuch"),
        (("alter", "orders", "--partitions", "1"), "INVALID_ARGUMENT: topic orders"),
        (("alter", "none", "--partitions", "1"), "NOT_FOUND: unknown topic none"),
        (("delete", "none", "--yes"), "NOT_FOUND: unknown topic none"),
        (("show", "none"), "NOT_FOUND: unknown topic none"),
    ]:
        result = await run_on("topics", *args)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"pixy: {line}")
        assert result.stderr.count("\n") == 1


# --- wrong usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("create", "t", "--partitions", "0"), "0 is not in the range"),
        (("create", "t", "--config", "retention_ms"), "'retention_ms' is not NAME=VALUE"),
        (("create", "t", "--config", "=1"), "'=1' is not NAME=VALUE"),
        (("create", "t", "--config", "retention.ms=7d"), 'retention_ms is "7d"; expected a duration'),
        (("create", "t", "--config", "segment_ms=1us"), "segment_ms is 1us, which is not a whole number"),
        (("create", "t", "--config", "segment_bytes=1 cow"), 'segment_bytes is "1 cow"; expected a number'),
        (
            ("create", "t", "--config", "segment_ms=1", "--config", "segment.ms=2"),
            "--config segment_ms is given more than once",
        ),
        (("alter", "t"), "nothing to change: give --partitions, --config or --unset"),
        (("delete", "t"), "standard input is not a terminal: confirm with --yes"),
    ],
)
def test_wrong_usage_is_reported_and_nothing_is_changed(
    pixy: FakePixy, run: Run, args: tuple[str, ...], text: str
) -> None:
    result = run("topics", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert pixy.calls == []


def test_a_number_is_sent_to_the_daemon_as_it_is(pixy: FakePixy, run: Run) -> None:
    pixy.answers["CreateTopic"] = FOO
    options = ("--config", "retention_ms=-1", "--config", "segment.bytes=007", "--config", "other=x=y")
    assert run("topics", "create", "foo", *options).exit_code == 0
    (request,) = pixy.named("CreateTopic")
    assert dict(request.config) == {"retention_ms": "-1", "segment_bytes": "007", "other": "x=y"}


# --- confirmation ---------------------------------------------------------------------------------

QUESTION = "Delete topic foo with all its messages and committed offsets? [y/N] "


@contextmanager
def asked(pixy: FakePixy) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """A `pixy topics delete foo` at its prompt on a terminal, and the terminal to answer at."""
    person, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pixy", "topics", "delete", "foo", "--address", pixy.address],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            while not said.endswith("? [y/N] ") and (character := process.stderr.read(1)):
                said += character
            assert said == QUESTION
            yield process, person
        finally:
            process.kill()
            os.close(person)
            os.close(terminal)


@pytest.mark.process
@pytest.mark.parametrize("answer", [b"y\n", b" YES \n"])
def test_a_confirmed_deletion_deletes_the_topic(pixy: FakePixy, answer: bytes) -> None:
    pixy.answers["DeleteTopic"] = topics_pb.DeleteTopicResponse()
    with asked(pixy) as (process, person):
        assert pixy.calls == []
        os.write(person, answer)
        assert process.communicate(timeout=SECONDS) == ("deleted foo\n", "")
        assert process.returncode == 0
    assert pixy.calls == [("DeleteTopic", topics_pb.DeleteTopicRequest(topic="foo"))]


@pytest.mark.process
@pytest.mark.parametrize("answer", [b"\n", b"n\n", b"yesterday\n", b"\x04"])
def test_an_unconfirmed_deletion_keeps_the_topic(pixy: FakePixy, answer: bytes) -> None:
    with asked(pixy) as (process, person):
        os.write(person, answer)
        assert process.communicate(timeout=SECONDS) == ("", "pixy: foo was not deleted\n")
        assert process.returncode == 1
    assert pixy.calls == []


@pytest.mark.process
def test_ctrl_c_at_the_prompt_exits_as_everywhere(pixy: FakePixy) -> None:
    with asked(pixy) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert pixy.calls == []


# --- consumers ------------------------------------------------------------------------------------


def test_consumers_lists_the_partitions_of_each_consumer(pixy: FakePixy, run: Run) -> None:
    held = pb.ConsumerGroups(
        consumers={
            "c2": pb.ConsumerPartitions(partitions=[2]),
            "c1": pb.ConsumerPartitions(partitions=[1, 0]),
        }
    )
    pixy.answers["ListConsumers"] = pb.ListConsumersRs(groups={"g": held})
    assert run("consumers", "foo", "--group", "g").stdout == (
        "GROUP  CLIENT  PARTITIONS\ng      c1      0,1\ng      c2      2\n"
    )
    assert json.loads(run("consumers", "foo", "--json").stdout) == {"g": {"c1": [0, 1], "c2": [2]}}
    assert pixy.calls[0] == ("ListConsumers", pb.ListConsumersRq(topic="foo", group="g"))


@pytest.mark.slow
def test_consumers_without_a_topic_lists_all_groups(pixy: FakePixy, run: Run) -> None:
    def consumers(request: pb.ListConsumersRq) -> pb.ListConsumersRs:
        if request.topic == "gone":
            raise Refused(grpc.StatusCode.NOT_FOUND, "unknown topic gone")
        held = pb.ConsumerGroups(consumers={"c": pb.ConsumerPartitions(partitions=[1, 0])})
        return pb.ListConsumersRs(groups={"g": held} if request.topic == "bar" else {"h": held, "g": held})

    topics = {name: pb.GetTopicMetadataRs() for name in ("foo", "bar", "gone")}
    groups = topics_pb.ListGroupsResponse(groups=["without members", "h", "g"])
    pixy.answers |= {
        "ListTopics": pb.ListTopicRs(topics=topics),
        "ListConsumers": consumers,
        "ListGroups": groups,
    }
    assert run("consumers").stdout == (
        "GROUP            TOPIC  CLIENT  PARTITIONS\n"
        "g                bar    c       0,1\n"
        "g                foo    c       0,1\n"
        "h                foo    c       0,1\n"
        "without members  -      -\n"
    )
    assert json.loads(run("consumers", "--json", "-g", "without members").stdout) == {"without members": {}}
    assert json.loads(run("consumers", "--json", "-g", "h").stdout) == {"h": {"foo": {"c": [0, 1]}}}
    refused = run("consumers", "-g", "i")
    assert (refused.exit_code, refused.stderr) == (1, "pixy: consumer group i consumes nothing\n")
