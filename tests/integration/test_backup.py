"""Backups of running clusters under load: what clients were answered before one began is in it, at
its place, and nothing that its offsets speak of is missing; whatever dies meanwhile.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.records import crc32c
from tests.fakes.batches import batch_of
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import CHANNEL_OPTIONS, Daemon, proxy_config
from tests.integration.ledger import Position
from tests.integration.loaded import LoadedCluster
from tests.integration.producers import read_log

pytestmark = pytest.mark.process

SECONDS = 60.0
PARTITIONS = 3
LARGE, LARGE_PARTITIONS, LARGE_BYTES = "large", 6, 500_000
CONFIG = proxy_config(storage={"segment_bytes": "1MiB", "checkpoint_entries": 20, "retention": 0})
"""The records of staged writes here are old by their timestamps."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", config=CONFIG) as cluster:
        cluster.start()
        yield cluster


def arguments_of(command: str, *others: object, nodes: Sequence[ClusterNode] = ()) -> list[str]:
    addresses = ["--address", ",".join(node.address for node in nodes)] if nodes else []
    return [sys.executable, "-m", "pixy", *command.split(), *map(str, others), *addresses, "--json"]


def pixy(command: str, *others: object, nodes: Sequence[ClusterNode] = ()) -> Any:
    """Run a command; returns what it prints."""
    done = subprocess.run(
        arguments_of(command, *others, nodes=nodes), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fill(cluster: Cluster) -> None:
    """Make a topic with a megabyte in each partition."""
    cluster.create_topic(LARGE, LARGE_PARTITIONS)
    with grpc.insecure_channel(cluster.running[0].address, options=CHANNEL_OPTIONS) as channel:
        stub = LogStub(channel)
        for number in range(LARGE_PARTITIONS):
            batches = batch_of(os.urandom(LARGE_BYTES)) + batch_of(os.urandom(LARGE_BYTES))
            written = log_pb.PartitionBatches(topic=LARGE, partition=number, batches=batches)
            (result,) = stub.Append(log_pb.AppendRequest(partitions=[written]), timeout=SECONDS).results
            assert not result.code, result.message


def committed(address: str, topic: str) -> dict[int, tuple[int, int]]:
    """Offset of the group "group", and end, by partition."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        answer = KafkaPixyStub(channel).GetOffsets(
            pb.GetOffsetsRq(topic=topic, group="group"), timeout=SECONDS
        )
    return {each.partition: (each.offset, each.end) for each in answer.offsets}


@contextmanager
def consumed(node: ClusterNode, topic: str) -> Iterator[None]:
    """A consumer that acknowledges everything at once."""
    ended = threading.Event()

    def consume() -> None:
        with grpc.insecure_channel(node.address, options=CHANNEL_OPTIONS) as channel:
            stub = LogStub(channel)
            request = log_pb.ConsumeBatchRequest(topic=topic, group="group", max_messages=10, auto_ack=True)
            while not ended.is_set():
                try:
                    stub.ConsumeBatch(request, timeout=SECONDS)
                except grpc.RpcError:
                    ended.wait(0.1)  # no message has come, or the node was killed

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def logs_at(address: str, topic: str, partitions: int) -> dict[Position, bytes]:
    """All records of a topic by their places."""
    return {
        Position(topic, number, offset): value
        for number in range(partitions)
        for offset, value in read_log(address, topic, number)[0]
    }


def check_restored(
    address: str,
    loaded: LoadedCluster,
    answered: Mapping[Position, bytes],
    offsets: Mapping[int, tuple[int, int]],
) -> None:
    """Compare what was restored with the cluster, and with what it had answered."""
    found = logs_at(address, loaded.topic, PARTITIONS)
    lost = {position: value for position, value in answered.items() if found.get(position) != value}
    assert not lost, f"{len(lost)} of {len(answered)} answered records are lost: {min(lost)}"
    original = logs_at(loaded.cluster.running[0].address, loaded.topic, PARTITIONS)
    assert found.items() <= original.items()
    for number, (offset, end) in committed(address, loaded.topic).items():
        assert offsets[number][0] <= offset <= end, (number, offsets[number], offset, end)
    wide = loaded.cluster.running[0].address
    assert logs_at(address, LARGE, LARGE_PARTITIONS) == logs_at(wide, LARGE, LARGE_PARTITIONS)


@pytest.mark.parametrize("killed", ["nobody", "leader", "asked"])
def test_a_backup_under_load_has_what_was_answered_before(
    cluster: Cluster, tmp_path: Path, killed: str
) -> None:
    loaded = LoadedCluster(cluster, partitions=PARTITIONS)
    fill(cluster)
    leader = loaded.leader()
    nodes = [*cluster.others(leader), leader]
    target, data = tmp_path / "target", tmp_path / "restored"
    staying = nodes[1]
    with loaded.produced([staying]) as producers, consumed(staying, loaded.topic):
        until_blocking(
            lambda: any(offset for offset, _ in committed(staying.address, loaded.topic).values()),
            cluster.logs,
        )
        offsets = committed(staying.address, loaded.topic)
        answered = dict(loaded.ledger.acknowledged)
        process = subprocess.Popen(
            arguments_of("backup create", target, "--rate", "2MiB", nodes=nodes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until_blocking(lambda: any(target.glob("data/*/*/*/*")), cluster.logs)
        if killed != "nobody":
            (leader if killed == "leader" else nodes[0]).kill()
        output, errors = process.communicate(timeout=SECONDS * 3)
        assert process.returncode == 0, errors
        producers.wait_answers([staying])
    assert json.loads(output)["reused_bytes"] == 0
    assert pixy("backup verify", target)["damaged"] == []
    restored = pixy("restore", target, data)
    assert restored["messages"] >= len(answered)
    assert pixy("storage check", data)["verdict"] == "ok"
    with Daemon(tmp_path / "daemon", CONFIG | {"data_dir": str(data), "peer_addr": ""}) as daemon:
        check_restored(daemon.address, loaded, answered, offsets)


def test_a_restored_node_becomes_a_cluster_of_three(cluster: Cluster, tmp_path: Path) -> None:
    loaded = LoadedCluster(cluster, partitions=PARTITIONS)
    fill(cluster)
    target = tmp_path / "target"
    with loaded.produced():
        pass
    answered, offsets = dict(loaded.ledger.acknowledged), committed(cluster[1].address, loaded.topic)
    pixy("backup create", target, "--rate", "0", nodes=cluster.nodes)
    with Cluster(tmp_path / "new", config=CONFIG) as new:
        pixy("restore", target, new[1].config["data_dir"])
        new.start()

        def are_three() -> bool:
            groups = new[1].status().groups
            return all(len(group.voters) == 3 and not group.learners for group in groups)

        until_blocking(are_three, new.logs)
        new.wait_in_sync()
        for node in new.nodes:
            check_restored(node.address, loaded, answered, offsets)
        after = LoadedCluster(new, topic="after", partitions=1)
        with after.produced():
            pass


def test_a_backup_that_was_killed_goes_on_with_what_is_there(cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster)
    target = tmp_path / "target"
    create = arguments_of("backup create", target, "--rate", "1MiB", nodes=cluster.nodes)
    process = subprocess.Popen(create, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until_blocking(lambda: any(target.glob("data/*/*/*/*[0-9a-f]")), cluster.logs)
    process.kill()
    process.wait()
    assert pixy("backup list", target) == []
    left = {path: path.stat().st_mtime_ns for path in target.glob("data/*/*/*/*") if path.suffix != ".part"}
    assert 0 < len(left) < LARGE_PARTITIONS
    done = pixy("backup create", target, "--rate", "0", nodes=cluster.nodes)
    assert done["reused_bytes"] == sum(path.stat().st_size for path in left)
    assert done["fetched_bytes"] == done["reused_bytes"] // len(left) * (LARGE_PARTITIONS - len(left))
    assert {path: path.stat().st_mtime_ns for path in left} == left
    assert pixy("backup verify", target)["damaged"] == []
    again = pixy("backup create", target, nodes=cluster.nodes)
    assert again["fetched_bytes"] == 0
    assert len(pixy("backup list", target)) == 2


def publish(stub: LogStub, epoch: int) -> bool:
    """Stage and publish a record in each partition."""
    batch = batch_of(b"epoch %d" % epoch)
    stage = f"stage-{epoch}"
    pieces = [
        log_pb.PartitionBatches(topic="staged", partition=number, batches=batch)
        for number in range(PARTITIONS)
    ]
    crc = crc32c(crc32c(batch * PARTITIONS).to_bytes(4, "big"))
    seal = log_pb.Seal(pieces=1, crc=crc)
    stub.Stage(
        log_pb.StageRequest(sink_id="sink", stage_id=stage, partitions=pieces, seal=seal), timeout=SECONDS
    )
    request = log_pb.PublishRequest(sink_id="sink", epoch=epoch, query_id="query", stage_ids=[stage])
    return stub.Publish(request, timeout=SECONDS).published


def epochs_at(address: str) -> list[list[int]]:
    """Epochs of which a record is there, by partition in the order of the log."""
    return [
        [int(value.removeprefix(b"epoch ")) for _, value in read_log(address, "staged", number)[0]]
        for number in range(PARTITIONS)
    ]


def test_sinks_go_on_behind_the_epochs_that_are_there(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("staged", PARTITIONS)
    target, data = tmp_path / "target", tmp_path / "restored"
    with grpc.insecure_channel(cluster[1].address, options=CHANNEL_OPTIONS) as channel:
        stub = LogStub(channel)
        for epoch in range(5):
            assert publish(stub, epoch)
        create = arguments_of("backup create", target, nodes=cluster.nodes)
        process = subprocess.Popen(create, stdout=subprocess.PIPE, text=True)
        newest = 4
        while process.poll() is None:
            newest += 1
            assert publish(stub, newest)
        assert process.returncode == 0
        process.communicate()
    pixy("restore", target, data)
    with (
        Daemon(tmp_path / "daemon", CONFIG | {"data_dir": str(data), "peer_addr": ""}) as daemon,
        grpc.insecure_channel(daemon.address, options=CHANNEL_OPTIONS) as channel,
    ):
        stub = LogStub(channel)
        there = epochs_at(daemon.address)
        answer = stub.Publish(
            log_pb.PublishRequest(sink_id="sink", epoch=0, query_id="query"), timeout=SECONDS
        )
        assert not answer.published
        last = answer.last_epoch
        assert 4 <= last <= newest
        for epochs in there:
            assert epochs == list(range(len(epochs)))
            assert len(epochs) > last, "an epoch that counts as published is missing"
        # The query goes on with the next one, whose numbers are new here.
        for epoch in range(last + 1, last + 4):
            assert publish(stub, epoch)
        for before, after in zip(there, epochs_at(daemon.address), strict=True):
            assert after == [*before, *range(last + 1, last + 4)]


def test_an_address_where_nobody_listens_and_a_target_that_is_none(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    create = arguments_of("backup create", tmp_path / "file" / "x", nodes=cluster.nodes)
    done = subprocess.run(create, capture_output=True, text=True, check=False)
    assert (done.returncode, "Not a directory" in done.stderr) == (1, True)
