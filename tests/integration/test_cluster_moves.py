"""Replicas that move between daemons under load: by command, and by themselves. No call fails at
clients that know all nodes, nothing that was answered is lost, and nothing is there twice.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from pixy.cli import main
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.loaded import LoadedCluster
from tests.integration.moving_daemon import MOVING
from tests.integration.producers import ANYWHERE, Producers

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

SHORT = proxy_config(
    journal={"file_bytes": "1MiB", "max_unapplied_bytes": "4MiB", "retain_bytes": 0},
    storage={"segment_bytes": "1MiB", "checkpoint_entries": 20},
)
"""Replicas that come need a copy: no journal goes back to the begin."""
NODES, PARTITIONS, PAD_BYTES = 6, 4, 4096
TOPIC = "moving"
COMMAND_S = "60"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Six nodes, of which none is started."""
    with Cluster(tmp_path, NODES, config=SHORT, program=MOVING) as cluster:
        yield cluster


def start(cluster: Cluster, *numbers: int, replace_after: str = "0s") -> None:
    """Found a cluster of these nodes."""
    for number in numbers:
        join = [cluster.join[each - 1] for each in numbers]
        configure(cluster[number], join, replace_after)
    cluster.start(*numbers)


def configure(node: ClusterNode, join: Sequence[str], replace_after: str = "0s") -> None:
    options = {**node.config["cluster"], "join": [*join], "replace_after": replace_after}
    node.config["cluster"] = options


def join(cluster: Cluster, number: int, replace_after: str = "0s") -> int:
    """Start a node that joins those that run; returns its id."""
    node = cluster[number]
    running = [cluster.network.advertised(each.number) for each in cluster.running]
    configure(node, [*running, cluster.network.advertised(number)], replace_after)
    node.start()
    return cluster.id_of(node)


def pixy(node: ClusterNode, *command: str) -> str:
    """Output of a client command."""
    result = CliRunner().invoke(main, [*command, "--address", node.address, "--timeout", COMMAND_S])
    assert result.exit_code == 0, result.output
    return result.stdout


def replicas(node: ClusterNode, topic: str = TOPIC) -> list[set[int]]:
    """Nodes of each partition that serve it."""
    shown = json.loads(pixy(node, "topics", "show", topic, "--json"))
    return [{*each["replicas"]} for each in shown["partitions"]]


def wait_replicas(cluster: Cluster, node: ClusterNode, wanted: set[int]) -> None:
    """Wait until all partitions are on these nodes, and nothing moves."""

    def are_there() -> bool:
        return all(each == wanted for each in replicas(node)) and not node.status().moves

    def told() -> str:
        return f"replicas {replicas(node)}, wanted {wanted}; {node.status()}; logs:\n{cluster.logs()}"

    until_blocking(are_there, told)


@contextmanager
def loaded(cluster: Cluster) -> Iterator[tuple[LoadedCluster, Producers]]:
    """A topic, and producers that know all nodes; no call of theirs may fail."""
    topic = LoadedCluster(cluster, TOPIC, PARTITIONS)
    producers = Producers(
        cluster.nodes[:3], topic.ledger, TOPIC, pad_bytes=PAD_BYTES, anywhere=True, knows=cluster.nodes
    )
    with producers:
        wait_answers(cluster, producers, 200)
        yield topic, producers
        wait_answers(cluster, producers, 200)
    assert producers.failed == [], f"{producers.failed}; logs:\n{cluster.logs()}"
    topic.audit()


def wait_answers(cluster: Cluster, producers: Producers, count: int) -> None:
    wanted = producers.answered[ANYWHERE] + count
    until_blocking(
        lambda: producers.answered[ANYWHERE] >= wanted,
        lambda: f"{producers.answered}, {producers.failed[-5:]}; logs:\n{cluster.logs()}",
    )


def test_a_lone_node_with_data_becomes_three_and_its_topic_can_have_fewer_replicas(cluster: Cluster) -> None:
    start(cluster, 1)
    with loaded(cluster):
        ids = {1, join(cluster, 2), join(cluster, 3)}
        wait_replicas(cluster, cluster[1], ids)
        assert not cluster[1].status().under_replicated
        pixy(cluster[2], "topics", "alter", TOPIC, "--config", "replication=1")
        until_blocking(lambda: [len(each) for each in replicas(cluster[1])] == [1] * PARTITIONS, cluster.logs)


def test_a_node_is_drained(cluster: Cluster) -> None:
    start(cluster, 1, 2, 3)
    with loaded(cluster) as (topic, _):
        spare = join(cluster, 4)
        ids, leader = {*cluster.ids()}, topic.leader()
        goes = cluster.id_of(leader)
        asked = cluster.others(leader)[0]
        pixy(asked, "cluster", "drain", str(goes), "--yes")
        wait_replicas(cluster, asked, ids - {goes})
        drained = next(each for each in asked.status().nodes if each.node_id == goes)
        assert (drained.draining, drained.replicas, drained.kept_replicas) == (True, 0, 0)
        pixy(asked, "cluster", "undrain", str(goes))
        pixy(asked, "cluster", "rebalance", "--yes")
        until_blocking(lambda: any(goes in each for each in replicas(asked)), cluster.logs)
        assert spare in ids
        until_blocking(lambda: not asked.status().moves, cluster.logs)


def test_a_node_that_is_killed_for_good_is_replaced(cluster: Cluster) -> None:
    start(cluster, 1, 2, 3, replace_after="5s")
    with loaded(cluster) as (topic, _):
        join(cluster, 4, "5s")
        ids, gone = {*cluster.ids()}, topic.leader()
        gone_id = cluster.id_of(gone)
        gone.kill()
        wait_replicas(cluster, cluster.running[0], ids - {gone_id})


def test_all_nodes_are_replaced_one_after_the_other(cluster: Cluster) -> None:
    start(cluster, 1, 2, 3)
    with loaded(cluster):
        for old, new in ((1, 4), (2, 5), (3, 6)):
            join(cluster, new)
            asked, goes = cluster[new], cluster[old]
            pixy(asked, "cluster", "remove", str(cluster.id_of(goes)), "--yes")
            goes.stop()
        ids = {*cluster.ids()}
        assert [node.number for node in cluster.running] == [4, 5, 6]
        wait_replicas(cluster, cluster[4], ids)
    assert not cluster[4].status().problems


def test_a_move_is_taken_back(cluster: Cluster) -> None:
    start(cluster, 1, 2, 3)
    with loaded(cluster):
        spare = join(cluster, 4)
        before = replicas(cluster[1])
        goes = min(before[0])
        # It cannot end: who is to have the replica is down.
        until_blocking(lambda: spare in {*cluster.ids()}, cluster.logs)
        cluster[4].pause()
        pixy(cluster[1], "cluster", "move", f"{TOPIC}/0", str(goes), str(spare), "--yes")
        until_blocking(lambda: len(cluster[1].status().moves) == 1, cluster.logs)
        pixy(cluster[2], "cluster", "cancel", f"{TOPIC}/0", "--yes")
        until_blocking(lambda: not cluster[1].status().moves, cluster.logs)
        assert replicas(cluster[1]) == before
        cluster[4].resume()
    assert replicas(cluster[4]) == before
