"""A storm of all calls with short deadlines and cancellations: afterwards the daemon still serves,
and has leaked nothing.

The daemon counts its own objects (SIGUSR1). The first, short storm warms up everything that is
created once, such as connections to brokers and files. A further storm must leave behind what it
found.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from pixy.cli.connection import status_name
from pixy.proto import kafkapixy_pb2 as pb
from tests.fakes.waiting import until_blocking
from tests.integration.daemon import Daemon
from tests.judges.daemons import check_log, judged_daemon
from tests.judges.http_storm import ROUTES
from tests.judges.storm import METHODS
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
GROWN_BYTES_MAX = 48 * 1024 * 1024
STORMS_MAX = 3
"""A higher peak of memory may stay resident. A leak grows in each storm."""
LASTING_CONNECTIONS = 8
"""Connections to a broker that are opened when they are needed, and then stay for some minutes: to
a seed, for short requests, Produce, transactions and four fetches.
"""
SECONDS = 20.0
PYTHONS_WARNINGS = re.compile(r"\w*Warning: |never awaited|was destroyed|never retrieved")

# State that outlives a call expires soon: offers without acks, subscriptions without requests.
# Buffers are small, so that calls wait.
CONSUMER = {
    "ack_timeout": "300ms",
    "subscription_timeout": "500ms",
    "long_polling_timeout": "1s",
    "offsets_commit_interval": "100ms",
}
PRODUCER = {"buffer_bytes": 131_072, "channel_buffer_size": 64, "max_message_bytes": 100_000}
CLUSTER = {"client_id": "storm", "default_partitions": 4, "consumer": CONSUMER, "producer": PRODUCER}


def config(**cluster: Any) -> dict[str, Any]:
    return {"shutdown_timeout": "2s", "proxies": {"default": {**CLUSTER, **cluster}}}


def counts(daemon: Daemon) -> dict[str, int]:
    """The daemon's current counts."""
    before = len(_counts_logged(daemon))
    daemon.signal(signal.SIGUSR1)
    until_blocking(lambda: len(_counts_logged(daemon)) > before or not daemon.running, daemon.log)
    assert daemon.running, f"the daemon has ended; its log:\n{daemon.log()}"
    return _counts_logged(daemon)[-1]


def _counts_logged(daemon: Daemon) -> list[dict[str, int]]:
    lines = [line for line in daemon.log().splitlines() if re.search(r"\] counts +", line)]
    return [{name: int(count) for name, count in re.findall(r"([\w.]+)=(\d+)", line)} for line in lines]


class Kept(NamedTuple):
    """Sockets of a daemon that no caller has, and its tasks beyond one for each of them."""

    sockets: int
    tasks: int


def wait_settled(daemon: Daemon, most: Kept | None = None) -> Kept:
    """Wait until a storm has left nothing behind; returns what is kept.

    Args:
        most: how much may be kept. There may be other connections to brokers, each with a task.
    """
    seen: dict[str, int] = {}

    def kept() -> Kept:
        # A client's connection may be there yet, which has no task.
        return Kept(seen["sockets"], max(0, seen["tasks"] - seen["sockets"]))

    def has_settled() -> bool:
        sockets = _sockets(daemon)
        seen.update(counts(daemon), sockets=sockets)
        if sockets != _sockets(daemon) or any(_kept_for_callers(seen).values()):
            return False
        return most is None or (
            kept().tasks <= most.tasks and kept().sockets <= most.sockets + LASTING_CONNECTIONS
        )

    until_blocking(has_settled, lambda: f"left: {seen}, before: {most}")
    return kept()


def _sockets(daemon: Daemon) -> int:
    """The number of sockets of a daemon."""
    links = []
    for link in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(link))
    return sum(link.startswith("socket:") for link in links)


def _kept_for_callers(seen: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in seen.items() if name not in ("tasks", "sockets")}


def storm(daemon: Daemon, seconds: float, seed: int) -> dict[str, Any]:
    """Run a storm; returns its report."""
    command = [sys.executable, "-m", "tests.judges.storm", daemon.address, str(seconds), str(seed)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def check_serves(daemon: Daemon) -> None:
    """Assert that a client uninvolved in the storm is served."""
    stub = daemon.stub()
    stub.Produce(pb.ProdRq(topic="calm", key_undefined=True, message=b"m"), timeout=SECONDS)
    asked = pb.ConsNAckRq(topic="calm", group="calm", auto_ack=True)

    def is_consumed() -> bool:
        """A poll may end before a consumer group of Kafka is joined."""
        try:
            return bool(stub.ConsumeNAck(asked, timeout=SECONDS).message == b"m")
        except grpc.RpcError as error:
            if status_name(error) != "NOT_FOUND":
                raise
            return False

    until_blocking(is_consumed)
    daemon.close_channels()


def withstands(daemon: Daemon, seconds: float) -> None:
    """Run both storms against a daemon and compare its counts."""
    check_serves(daemon)
    storm(daemon, seconds / 4, seed=1)
    kept = wait_settled(daemon)
    grown: list[int] = []
    while not grown or grown[-1] > GROWN_BYTES_MAX:
        assert len(grown) < STORMS_MAX, f"each storm leaves more resident than before, in bytes: {grown}"
        rss_bytes = daemon.rss_bytes()
        report = storm(daemon, seconds, seed=2 + len(grown))
        assert report["calls"].keys() == {method.name for method in METHODS.values()}
        assert report["ends"].keys() >= {"OK", "DEADLINE_EXCEEDED", "CANCELLED"}, report["ends"]
        wait_settled(daemon, kept)
        grown.append(daemon.rss_bytes() - rss_bytes)
    check_serves(daemon)
    check_log(daemon)
    warning = PYTHONS_WARNINGS.search(daemon.log())
    assert warning is None, f"the interpreter warned: {daemon.log()[warning.start() :][:1000]}"


def withstands_http(daemon: Daemon, seconds: float) -> None:
    """Run both storms over HTTP, and compare as `withstands` does."""
    check_serves(daemon)
    http_storm(daemon, seconds / 4, seed=1)
    kept = wait_settled(daemon)
    report = http_storm(daemon, seconds, seed=2)
    assert report["calls"].keys() == ROUTES.keys()
    assert report["ends"].keys() >= {"200", "404", "given up"}, report["ends"]
    wait_settled(daemon, kept)
    check_serves(daemon)
    check_log(daemon)
    warning = PYTHONS_WARNINGS.search(daemon.log())
    assert warning is None, f"the interpreter warned: {daemon.log()[warning.start() :][:1000]}"


def http_storm(daemon: Daemon, seconds: float, seed: int) -> dict[str, Any]:
    """Run a storm over HTTP; returns its report."""
    address = daemon.addresses["http"]
    command = [sys.executable, "-m", "tests.judges.http_storm", address, str(seconds), str(seed)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def stormed_daemon(folder: Path, **cluster: Any) -> Any:
    """A daemon that shows all warnings of the interpreter."""
    return judged_daemon(folder, config(**cluster), program=("-W", "always", "-m", "pixy"))


def test_a_storm_of_all_calls_leaks_nothing(tmp_path: Path) -> None:
    with stormed_daemon(tmp_path / "daemon") as daemon:
        withstands(daemon, 4)


def test_a_storm_over_http_leaks_nothing(tmp_path: Path) -> None:
    options = {**config(), "tcp_addr": "127.0.0.1:0"}
    with judged_daemon(tmp_path / "daemon", options, program=("-W", "always", "-m", "pixy")) as daemon:
        withstands_http(daemon, 4)


@pytest.mark.long
def test_a_long_storm_of_all_calls_leaks_nothing(tmp_path: Path) -> None:
    with stormed_daemon(tmp_path / "daemon") as daemon:
        withstands(daemon, 40)


@pytest.mark.long
@pytest.mark.kafka
def test_a_long_storm_in_front_of_kafka_leaks_nothing(
    tmp_path: Path, kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    with stormed_daemon(tmp_path / "daemon", kafka={"seed_peers": kafka.addresses}) as daemon:
        withstands(daemon, 40)
