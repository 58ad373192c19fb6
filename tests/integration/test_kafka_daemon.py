"""Daemons in front of a real Kafka: brokers that start late, several clusters side by side, and
answers to clients.
"""

import queue
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.fakes.waiting import until_blocking
from tests.integration.balancer import Balancer
from tests.integration.daemon import Daemon
from tests.integration.group_clients import GroupConsumers, code_of
from tests.kafka.cluster import KafkaCluster, free_ports

pytestmark = pytest.mark.process

MakeDaemon = Callable[..., Daemon]
Name = Callable[[str], str]

_PATIENCE_S = 60.0


def kafka_proxy(cluster: KafkaCluster, client_id: str = "pixy-a", **consumer: Any) -> dict[str, Any]:
    """An entry under `proxies`, as in kafka-pixy's files."""
    quick = {"long_polling_timeout": "1s", "rebalance_timeout": "2s", "session_timeout": "3s", **consumer}
    return {"client_id": client_id, "kafka": {"seed_peers": cluster.addresses}, "consumer": quick}


@pytest.fixture
def late_kafka(tmp_path: Path) -> Iterator[KafkaCluster]:
    """A cluster that is not started."""
    cluster = KafkaCluster(tmp_path / "kafka")
    yield cluster
    cluster.kill()


def wait_logged(daemon: Daemon, words: str) -> None:
    """Wait until the daemon has logged a text."""
    until_blocking(lambda: words in daemon.log(), daemon.log)


def health(daemon: Daemon) -> int:
    stub: Any = HealthStub(daemon.channel(daemon.config["grpc_addr"]))
    return int(stub.Check(health_pb2.HealthCheckRequest()).status)


def status_of(call: Callable[[Any], Any], request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call(request)
    error: Any = raised.value
    return error.code(), error.details()


def consume(stub: Any, topic: str, group: str, **fields: Any) -> Any:
    """The next record, over as many long polls as necessary."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return stub.ConsumeNAck(pb.ConsNAckRq(topic=topic, group=group, **fields))
        except grpc.RpcError as error:
            status: Any = error
            assert status.code() is grpc.StatusCode.NOT_FOUND, status
            assert time.monotonic() < give_up_at, "no record came"


def test_it_waits_for_brokers_that_are_not_up_yet(make_daemon: MakeDaemon, late_kafka: KafkaCluster) -> None:
    """The daemon serves its embedded cluster, reports that it is not ready and why, and becomes
    ready by itself.
    """
    daemon = make_daemon(
        {
            "grpc_addr": f"127.0.0.1:{free_ports(1)[0]}",
            "proxies": {"local": {"kind": "embedded"}, "far": kafka_proxy(late_kafka)},
        }
    )
    daemon.start_nowait()
    wait_logged(daemon, "not ready: a Kafka cluster cannot be reached")
    assert late_kafka.addresses[0] in daemon.log()
    assert health(daemon) == health_pb2.HealthCheckResponse.NOT_SERVING
    stub = KafkaPixyStub(daemon.channel(daemon.config["grpc_addr"]))
    stub.Produce(pb.ProdRq(cluster="local", topic="t", key_undefined=True, message=b"served"))
    calls: list[tuple[Any, Any]] = [
        (stub.Produce, pb.ProdRq(cluster="far", topic="t", key_undefined=True, message=b"x")),
        (stub.ConsumeNAck, pb.ConsNAckRq(cluster="far", topic="t", group="g", no_ack=True)),
        (stub.Ack, pb.AckRq(cluster="far", topic="t", group="g", partition=0, offset=0)),
        (stub.GetOffsets, pb.GetOffsetsRq(cluster="far", topic="t", group="g")),
    ]
    for call, request in calls:
        code, details = status_of(call, request)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "the Kafka cluster has not been reached yet" in details
        assert late_kafka.addresses[0] in details
    with pytest.raises(queue.Empty):
        daemon.next_line(0.1)
    late_kafka.start()
    line = daemon.next_line(_PATIENCE_S)
    assert line is not None
    assert line.startswith("pixy ready grpc=")
    assert health(daemon) == health_pb2.HealthCheckResponse.SERVING
    written = stub.Produce(pb.ProdRq(cluster="far", topic="t", key_undefined=True, message=b"hello"))
    got = consume(stub, "t", "g", cluster="far", auto_ack=True)
    assert (got.message, got.partition, got.offset) == (b"hello", written.partition, written.offset)


def test_a_daemon_waiting_for_brokers_can_be_stopped(
    make_daemon: MakeDaemon, late_kafka: KafkaCluster
) -> None:
    daemon = make_daemon({"proxies": {"far": kafka_proxy(late_kafka)}})
    daemon.start_nowait()
    wait_logged(daemon, "not ready: a Kafka cluster cannot be reached")
    daemon.stop()


def test_a_stop_without_brokers_counts_the_messages_that_it_gives_up(
    make_daemon: MakeDaemon, late_kafka: KafkaCluster
) -> None:
    late_kafka.start()
    producer = {"shutdown_timeout": "2s"}
    daemon = make_daemon({"proxies": {"far": {**kafka_proxy(late_kafka), "producer": producer}}})
    daemon.start()
    stub = daemon.stub()
    stub.Produce(pb.ProdRq(topic="t", key_undefined=True, message=b"written"))
    late_kafka.kill()
    for _ in range(5):
        stub.Produce(pb.ProdRq(topic="t", key_undefined=True, message=b"kept", async_mode=True))
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() != 0
    assert "stopped with messages that are not known to be written" in daemon.log()
    assert "stopped with 5 messages that are not known to be written" in daemon.log()


def test_clusters_side_by_side_are_independent(
    make_daemon: MakeDaemon, kafka: KafkaCluster, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    daemon = make_daemon({"proxies": {"far": kafka_proxy(kafka), "local": {"kind": "embedded"}}})
    daemon.start()
    stub = daemon.stub()
    stub.Produce(pb.ProdRq(topic=topic, key_undefined=True, message=b"in Kafka"))
    stub.Produce(pb.ProdRq(cluster="local", topic=topic, key_undefined=True, message=b"here"))
    assert consume(stub, topic, group, auto_ack=True).message == b"in Kafka"
    assert consume(stub, topic, group, auto_ack=True, cluster="local").message == b"here"
    daemon.stop()


def test_two_daemons_share_a_group_and_report_each_other(
    make_daemon: MakeDaemon, kafka: KafkaCluster, kafka_name: Name
) -> None:
    topic, group = kafka_name("t"), kafka_name("g")
    first, second = (
        make_daemon({"proxies": {"far": {**kafka_proxy(kafka, name), "default_partitions": 2}}})
        for name in ("pixy-a", "pixy-b")
    )
    first.start()
    second.start()
    a, b = first.stub(), second.stub()
    for at in range(40):
        a.Produce(pb.ProdRq(topic=topic, key_undefined=True, message=b"%d" % at))
    consume(a, topic, group, auto_ack=True)
    got = consume(b, topic, group, no_ack=True)
    ack = pb.AckRq(topic=topic, group=group, partition=got.partition, offset=got.offset)
    code, details = status_of(a.Ack, ack)
    assert (code, "is consumed by pixy-b" in details) == (grpc.StatusCode.INTERNAL, True), details
    moved = [pb.PartitionOffset(partition=got.partition, offset=got.offset)]
    code, details = status_of(a.SetOffsets, pb.SetOffsetsRq(topic=topic, group=group, offsets=moved))
    assert (code, "is consumed by pixy-b" in details) == (grpc.StatusCode.UNAVAILABLE, True), details
    b.Ack(ack)
    listed = a.ListConsumers(pb.ListConsumersRq(topic=topic, group=group))
    assert [sorted(each.consumers) for each in listed.groups.values()] == [["pixy-a", "pixy-b"]]
    second.stop()
    first.stop()


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """A file with the secret of daemons that are peers."""
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_text("a secret of this test alone")
    return str(path)


def test_a_balancer_is_between_clients_and_daemons_that_join(
    make_daemon: MakeDaemon, kafka: KafkaCluster, kafka_name: Name, secret: str
) -> None:
    """Each call has a connection of its own, and so goes to another daemon; the group is rebalanced
    meanwhile, and no message waits for its ack timeout.
    """
    topic, group = kafka_name("t"), kafka_name("g")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(6)]
    served, peers = addresses[:3], addresses[3:]
    patient = {"ack_timeout": "300s", "rebalance_timeout": "60s"}
    daemons = [
        make_daemon(
            {
                "grpc_addr": grpc_address,
                "peer_addr": address,
                "peers": peers,
                "cluster": {"secret_file": secret},
                "proxies": {"far": {**kafka_proxy(kafka, name, **patient), "default_partitions": 6}},
            }
        )
        for name, grpc_address, address in zip(("pixy-a", "pixy-b", "pixy-c"), served, peers, strict=True)
    ]
    daemons[0].start()
    stub = daemons[0].stub()
    values = [b"%d" % number for number in range(300)]
    with Balancer(served) as balancer:
        with GroupConsumers([balancer.address] * 4, topic, group, reconnects=True) as consumers:
            for part, daemon in enumerate(daemons):
                if part:
                    daemon.start()
                    until_blocking(partial(has_members, stub, topic, group, part + 1))
                for value in values[part * 100 : part * 100 + 100]:
                    stub.Produce(pb.ProdRq(topic=topic, key_undefined=True, message=value))
            consumers.wait_got(len(values))
        assert consumers.times() == Counter(values)
        assert consumers.failed == []
        assert min(balancer.accepted) > 0
    until_blocking(
        lambda: (
            sum(each.lag for each in stub.GetOffsets(pb.GetOffsetsRq(topic=topic, group=group)).offsets) == 0
        )
    )


def has_members(stub: Any, topic: str, group: str, count: int) -> bool:
    """True if so many members of a group have partitions."""
    try:
        answer = stub.ListConsumers(pb.ListConsumersRq(topic=topic, group=group))
    except grpc.RpcError as error:
        if code_of(error) is grpc.StatusCode.NOT_FOUND:
            return False
        raise
    return len(answer.groups[group].consumers) == count


def test_daemons_with_peers_answer_for_each_other(
    make_daemon: MakeDaemon, kafka: KafkaCluster, kafka_name: Name, secret: str
) -> None:
    """Messages, acks and offsets of the other one, and what is left when that is killed."""
    topic, group = kafka_name("t"), kafka_name("g")
    peers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    first, second = (
        make_daemon(
            {
                "peer_addr": address,
                "peers": peers,
                "cluster": {"secret_file": secret},
                "proxies": {"far": {**kafka_proxy(kafka, name, ack_timeout="300s"), "default_partitions": 2}},
            }
        )
        for name, address in zip(("pixy-a", "pixy-b"), peers, strict=True)
    )
    first.start()
    second.start()
    a, b = first.stub(), second.stub()
    consumed = {a.Produce(pb.ProdRq(topic=topic, key_undefined=True, message=b"0")).offset}
    assert consume(a, topic, group, auto_ack=True).offset in consumed
    with pytest.raises(grpc.RpcError):  # b is a member, and there is nothing
        b.ConsumeNAck(pb.ConsNAckRq(topic=topic, group=group, no_ack=True))
    values = [b"%d" % at for at in range(1, 41)]
    for value in values:
        a.Produce(pb.ProdRq(topic=topic, key_undefined=True, message=value))
    found = []
    for at in range(len(values)):
        got = consume(b, topic, group, no_ack=True)
        found.append(got.message)
        stub = (a, b)[at % 2]
        stub.Ack(pb.AckRq(topic=topic, group=group, partition=got.partition, offset=got.offset))
    assert sorted(found) == sorted(values)
    ends = a.GetOffsets(pb.GetOffsetsRq(topic=topic, group=group)).offsets
    for stub in (a, b):
        moved = [pb.PartitionOffset(partition=each.partition, offset=each.begin) for each in ends]
        stub.SetOffsets(pb.SetOffsetsRq(topic=topic, group=group, offsets=moved))
        again = consume(stub, topic, group, auto_ack=True)
        assert again.offset == 0
    first.kill()
    late = {(again.partition, again.offset)}
    while len(late) < len(values) + 1:
        got = consume(b, topic, group, auto_ack=True)
        late.add((got.partition, got.offset))
    second.stop()
