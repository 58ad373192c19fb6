"""A node that was away for longer than the journals of the others reach back, under load: it copies
what it lacks, and counts again; nothing is lost or doubled.
"""

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.ledger import Position
from tests.integration.loaded import LoadedCluster

pytestmark = pytest.mark.process

SHORT = proxy_config(
    journal={"file_bytes": "1MiB", "max_unapplied_bytes": "4MiB", "retain_bytes": 0},
    storage={"segment_bytes": "1MiB", "checkpoint_entries": 20},
)
RETAINED = {
    **proxy_config(journal={**SHORT["proxies"]["default"]["journal"], "retain_bytes": "1GiB"}),
    "management_addr": "127.0.0.1:0",
}
LACKS, GOES_ON = "copies them from another one", "was copied, and goes on"
PARTITIONS = 3
RECORD_BYTES = 400_000
FILLED_BYTES = 60_000_000
UNKNOWN = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, config=SHORT) as cluster:
        cluster.start()
        yield cluster


def journal_of(node: ClusterNode) -> list[str]:
    """Names of the files of a node's journal, oldest first."""
    return sorted(path.name for path in (node.folder / "data").glob("*/journal/*.journal"))


def said(node: ClusterNode, text: str, count: int = 1) -> None:
    """Wait until a node has logged something so often."""
    until_blocking(lambda: node.log().count(text) >= count, node.log)


def fill(node: ClusterNode, newest: dict[ClusterNode, str], cluster: Cluster) -> None:
    """Write records until none of the files that were there is in a journal: none has an entry for
    a node that is away any more.
    """
    with grpc.insecure_channel(node.address) as channel:
        stub = KafkaPixyStub(channel)

        def is_gone() -> bool:
            # Random bytes: others would be compressed.
            stub.Produce(pb.ProdRq(topic="busy", message=os.urandom(RECORD_BYTES), key_undefined=True))
            return all(journal_of(each)[0] > last for each, last in newest.items())

        until_blocking(is_gone, cluster.logs)


@pytest.mark.parametrize("killed", ["nobody", "destination", "source"])
def test_a_node_that_was_away_for_long_copies_what_it_lacks(cluster: Cluster, killed: str) -> None:
    loaded = LoadedCluster(cluster, partitions=PARTITIONS)
    cluster.create_topic("busy", 1)
    with loaded.produced() as producers:
        producers.wait_answers(cluster.nodes)
    source = loaded.leader()
    away, other = cluster.others(source)
    away.kill()
    newest = {node: journal_of(node)[-1] for node in (source, other)}
    with loaded.produced([source, other]) as producers:
        producers.wait_answers([source, other])
        fill(source, newest, cluster)
        away.start_nowait()
        said(away, LACKS)
        if killed != "nobody":
            node = away if killed == "destination" else source
            node.kill()
            node.start_nowait()
        said(away, GOES_ON, PARTITIONS if killed == "nobody" else 1)
        away.wait_serving()
        source.wait_serving()
        # Its replicas count: the other two go on without the third node.
        until_blocking(lambda: not away.status().nodes[0].reasons_to_stay, cluster.logs)
    assert {failed.code for failed in producers.failed} <= UNKNOWN
    loaded.audit(cluster.nodes)
    other.kill()
    with loaded.produced([source, away]):
        pass
    loaded.audit([source, away])


def cut_segments(node: ClusterNode) -> int:
    """Take the last byte of the newest segments of a stopped node; returns their number."""
    found = {path.parent: path for path in sorted((node.folder / "data").glob("*/topics/loaded-*/*.log"))}
    for path in found.values():
        content = path.read_bytes()
        assert content
        path.write_bytes(content[:-1])
    return len(found)


def test_a_node_with_damaged_replicas_fetches_them_and_is_one_of_a_majority(cluster: Cluster) -> None:
    loaded = LoadedCluster(cluster, partitions=PARTITIONS)
    with loaded.produced():
        pass
    source = loaded.leader()
    damaged, other = cluster.others(source)
    damaged.stop()
    assert cut_segments(damaged) == PARTITIONS
    with loaded.produced([source, other]):
        damaged.start_nowait()
        said(damaged, GOES_ON, PARTITIONS)
    damaged.wait_serving()
    other.kill()
    with loaded.produced([source, damaged]):
        pass
    loaded.audit([source, damaged])


def copies(node: ClusterNode) -> dict[str, float]:
    """Copies that a node has sent, fetched and failed to fetch, by the names of their metrics."""
    with urllib.request.urlopen(f"http://{node.addresses['management']}/metrics") as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines()]
    return {name.partition("{")[0]: float(value) for name, value in lines if name.startswith("pixy_copies_")}


@pytest.mark.slow
@pytest.mark.long
def test_a_node_that_the_journals_reach_back_to_copies_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, config=RETAINED) as cluster:
        cluster.start()
        loaded = LoadedCluster(cluster, partitions=1)
        source = loaded.leader()
        away, other = cluster.others(source)
        first = {node: journal_of(node)[0] for node in cluster.nodes}
        away.kill()
        with grpc.insecure_channel(source.address) as channel:
            stub = KafkaPixyStub(channel)
            for _ in range(FILLED_BYTES // RECORD_BYTES):
                # Random bytes: others would be compressed.
                value = os.urandom(RECORD_BYTES)
                answer = stub.Produce(pb.ProdRq(topic=loaded.topic, message=value, key_undefined=True))
                loaded.ledger.sent[value] += 1
                loaded.ledger.acknowledge(Position(loaded.topic, answer.partition, answer.offset), value)
        # Many times over what a node without `retain_bytes` keeps.
        assert all(len(journal_of(node)) > FILLED_BYTES >> 20 for node in (source, other))
        away.start()
        cluster.wait_in_sync()
        loaded.audit([away])
        assert {node: journal_of(node)[0] for node in cluster.nodes} == first
        for node in cluster.nodes:
            found = copies(node)
            assert {"pixy_copies_sent_total", "pixy_copies_fetched_total"} <= found.keys()
            assert not any(found.values()), found
        assert LACKS not in away.log()
