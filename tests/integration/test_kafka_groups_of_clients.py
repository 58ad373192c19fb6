"""Consumer groups of Kafka's clients at a real daemon: kcat, librdkafka by confluent-kafka,
aiokafka, beside pixy's own consumers.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from pixy.proto import kafkapixy_pb2 as pb
from tests.conftest import require
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config

pytestmark = [pytest.mark.process, pytest.mark.slow]

LINES = [f"message {number}" for number in range(400)]
TOPIC, GROUP, PARTITIONS = "orders", "workers", 4


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Iterator[Daemon]:
    proxy = proxy_config(
        consumer={"initial_offset": "oldest"}, storage={"group_initial_rebalance_delay": "0.1s"}
    )
    with make_daemon({"kafka_addr": "127.0.0.1:0", **proxy}) as daemon:
        fill(daemon)
        yield daemon


def kcat(daemon: Daemon, *args: str, given: str = "") -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(
        [require("kcat", "apt-get install kcat"), "-b", daemon.addresses["kafka"], *args],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(daemon: Daemon) -> None:
    """As many messages in each partition."""
    for number in range(PARTITIONS):
        lines = "".join(f"{line}\n" for line in LINES[number::PARTITIONS])
        kcat(daemon, "-P", "-t", TOPIC, "-p", str(number), given=lines)


def options(daemon: Daemon, **more: Any) -> dict[str, Any]:
    """Options of librdkafka."""
    return {
        "bootstrap.servers": daemon.addresses["kafka"],
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def until(holds: Callable[[], object], seconds: float = 60) -> None:
    """Poll, as these clients are polled."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "never"


@contextlib.contextmanager
def consumer(daemon: Daemon, **more: Any) -> Iterator[Consumer]:
    client = Consumer(options(daemon, **more))
    client.subscribe([TOPIC])
    try:
        yield client
    finally:
        client.close()


def read(clients: list[Consumer], found: list[str], wanted: int) -> None:
    """Read until so many messages were found."""

    def has_all() -> bool:
        for client in clients:
            for message in client.consume(100, 0.1):
                assert message.error() is None, message.error()
                found.append(message.value().decode())
        return len(found) >= wanted

    until(has_all)


def committed(daemon: Daemon) -> int:
    """Sum of the offsets as pixy's own API tells them."""
    answer = daemon.stub().GetOffsets(pb.GetOffsetsRq(topic=TOPIC, group=GROUP), timeout=10)
    return sum(max(each.offset, 0) for each in answer.offsets)


# --- kcat -----------------------------------------------------------------------------------------


def test_kcat_consumes_as_a_group_and_goes_on_where_it_was(daemon: Daemon) -> None:
    args = ["-G", GROUP, "-q", "-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000"]
    found = kcat(daemon, *args, "-c", "100", TOPIC).splitlines()
    assert len(found) == 100
    found += kcat(daemon, *args, "-c", "300", TOPIC).splitlines()
    assert sorted(found) == sorted(LINES)
    assert committed(daemon) == len(LINES)


# --- librdkafka -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_librdkafka_shares_partitions_and_hands_them_over(daemon: Daemon, strategy: str) -> None:
    found: list[str] = []
    more = {"partition_assignment_strategy": strategy, "auto_commit_interval_ms": 100}
    with consumer(daemon, **more) as one:
        read([one], found, len(LINES))
        with consumer(daemon, **more) as two:

            def is_shared() -> bool:
                for each in (one, two):
                    each.poll(0.1)
                return [len(each.assignment()) for each in (one, two)] == [2, 2]

            until(is_shared)
            fill(daemon)
            read([one, two], found, 2 * len(LINES))

        def is_alone() -> bool:
            one.poll(0.1)
            return len(one.assignment()) == PARTITIONS

        until(is_alone)
    assert sorted(found) == sorted(2 * LINES)
    assert committed(daemon) == 2 * len(LINES)


def test_a_static_member_of_librdkafka_comes_back_without_a_rebalance(daemon: Daemon) -> None:
    found: list[str] = []
    rebalances: list[str] = []

    def assigned(_: Consumer, partitions: list[Any]) -> None:
        rebalances.append(f"{len(partitions)}")

    with consumer(daemon, group_instance_id="one", session_timeout_ms=30_000) as one:
        read([one], found, len(LINES))
    began = time.monotonic()
    again = Consumer(options(daemon, group_instance_id="one", session_timeout_ms=30_000))
    again.subscribe([TOPIC], on_assign=assigned)
    try:

        def is_there() -> bool:
            again.poll(0.1)
            return bool(again.assignment())

        until(is_there)
        assert time.monotonic() - began < 25, "its session was not waited for"
        assert rebalances == [str(PARTITIONS)]
    finally:
        again.close()


def test_librdkafkas_admin_lists_describes_resets_and_deletes(daemon: Daemon) -> None:
    admin = AdminClient({"bootstrap.servers": daemon.addresses["kafka"]})
    found: list[str] = []
    with consumer(daemon) as one:
        read([one], found, len(LINES))
        listed = admin.list_consumer_groups().result(30)
        assert [(each.group_id, each.state.name) for each in listed.valid] == [(GROUP, "STABLE")]
        described = admin.describe_consumer_groups([GROUP])[GROUP].result(30)
        (member,) = described.members
        assert (described.state.name, described.partition_assignor) == ("STABLE", "range")
        assert len(member.assignment.topic_partitions) == PARTITIONS
        with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
            admin.delete_consumer_groups([GROUP])[GROUP].result(30)
    assert admin.delete_consumer_groups([GROUP])[GROUP].result(30) is None
    assert admin.list_consumer_groups().result(30).valid == []


def test_a_lone_client_of_librdkafka_keeps_offsets(daemon: Daemon) -> None:
    client = Consumer(options(daemon))
    try:
        client.commit(offsets=[ConfluentPartition(TOPIC, 1, 17, metadata="mine")], asynchronous=False)
        (found,) = client.committed([ConfluentPartition(TOPIC, 1)], timeout=30)
        assert (found.offset, found.metadata) == (17, "mine")
    finally:
        client.close()


# --- aiokafka -------------------------------------------------------------------------------------


async def test_aiokafka_consumes_as_a_group(daemon: Daemon) -> None:
    address = daemon.addresses["kafka"]

    def made() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=address,
            group_id=GROUP,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            auto_commit_interval_ms=100,
        )

    one, two = made(), made()
    await one.start()
    found = [(await asyncio.wait_for(one.getone(), 60)).value.decode() for _ in LINES]
    await two.start()
    async with asyncio.timeout(60):
        while [len(each.assignment()) for each in (one, two)] != [2, 2]:
            await asyncio.gather(*(each.getmany(timeout_ms=100) for each in (one, two)))
    await two.stop()
    await one.stop()
    assert sorted(found) == sorted(LINES)
    assert await asyncio.to_thread(committed, daemon) == len(LINES)


# --- beside pixy's own consumers ------------------------------------------------------------------


def test_pixys_own_consumers_and_kafka_clients_take_turns_at_a_group(daemon: Daemon) -> None:
    stub = daemon.stub()
    consume = pb.ConsNAckRq(topic=TOPIC, group=GROUP, auto_ack=True)
    found: list[str] = []
    with consumer(daemon, enable_auto_commit=False) as one:
        read([one], found, len(LINES))
        for partition in one.assignment():
            # What looks like acks of the next messages, and is none.
            offsets = [ConfluentPartition(TOPIC, partition.partition, 50, metadata="OK")]
            one.commit(offsets=offsets, asynchronous=False)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ConsumeNAck(consume, timeout=60)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"Kafka clients are members of consumer group {GROUP}: rdkafka" in (
            refused.value.details() or ""
        )
    rest = len(LINES) - PARTITIONS * 50
    own: list[str] = []

    def consumes() -> bool:
        try:
            own.append(stub.ConsumeNAck(consume, timeout=60).message.decode())
        except grpc.RpcError as error:
            # A consumer that closes does not wait until it has left.
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
        return len(own) == rest

    until(consumes)
    assert len({*own}) == rest
    with consumer(daemon) as two:
        errors: list[str] = []

        def is_refused() -> bool:
            message = two.poll(0.1)
            if message is not None and message.error() is not None:
                errors.append(message.error().name())
            return bool(errors)

        until(is_refused)
        assert errors[0] == "INCONSISTENT_GROUP_PROTOCOL"
