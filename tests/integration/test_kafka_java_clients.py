"""Kafka's own tools in Java at a real daemon."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.integration.kafka_tools import run_tool

pytestmark = [pytest.mark.process, pytest.mark.long]

TOOLS = "org.apache.kafka.tools"
RECORDS = 20_000


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Iterator[Daemon]:
    with make_daemon({"kafka_addr": "127.0.0.1:0"}) as daemon:
        yield daemon


@pytest.fixture
def tool(daemon: Daemon) -> Callable[..., str]:
    """Runs a tool: class, arguments."""

    return lambda name, *arguments: run_tool(
        name, "--bootstrap-server", daemon.addresses["kafka"], *arguments
    )


def test_topics_records_and_options_by_kafkas_tools(tool: Callable[..., str], tmp_path: Path) -> None:
    topics = partial(tool, f"{TOOLS}.TopicCommand")
    topics("--create", "--topic", "orders", "--partitions", "3", "--config", "retention.ms=60000")
    described = topics("--describe", "--topic", "orders")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=60000", described)
    assert "Partition: 2\tLeader: 1\tReplicas: 1\tIsr: 1" in described

    size = ("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
    assert f"{RECORDS} records sent" in tool(f"{TOOLS}.ProducerPerformance", "--topic", "orders", *size)
    ends = tool(f"{TOOLS}.GetOffsetShell", "--topic", "orders")
    assert sum(int(end) for end in re.findall(r"orders:\d:(\d+)", ends)) == RECORDS
    assert len(re.findall(r"orders:\d:\d+", tool(f"{TOOLS}.GetOffsetShell", "--time", "max-timestamp"))) == 3
    read = tool(f"{TOOLS}.ConsumerPerformance", "--topic", "orders", "--num-records", str(RECORDS))
    assert int(read.splitlines()[-1].split(", ")[4]) == RECORDS

    shown = tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "orders")
    (broker,) = json.loads(shown.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert (broker["broker"], directory["error"]) == (1, None)
    found = {(each["partition"], each["offsetLag"], each["isFuture"]) for each in directory["partitions"]}
    assert found == {(f"orders-{number}", 0, False) for number in range(3)}
    assert sum(each["size"] for each in directory["partitions"]) > 0

    of_topic = ("--entity-type", "topics", "--entity-name", "orders")
    configs = partial(tool, "kafka.admin.ConfigCommand", *of_topic)
    configs("--alter", "--add-config", "retention.ms=70000")
    assert "retention.ms=70000" in configs("--describe")
    configs("--alter", "--delete-config", "retention.ms")
    assert "retention.ms=" not in configs("--describe")

    file = tmp_path / "offsets.json"
    wanted = [{"topic": "orders", "partition": 0, "offset": 5}]
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))
    deleted = tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(file))
    assert "partition: orders-0\tlow_watermark: 5" in deleted
    topics("--alter", "--topic", "orders", "--partitions", "5")
    topics("--delete", "--topic", "orders")
    assert topics("--list").split() == []
