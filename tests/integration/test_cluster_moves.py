"""Replicas that move between daemons under load: by command, and by themselves. No call fails at
clients that know all nodes, nothing that was answered is lost, and nothing is there twice.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from bench.copies.__main__ import fill_topic
from pixy.cli import main
from pixy.proto import pixy_cluster_pb2 as cluster_pb
from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.faulty_daemon import FAULTY, Faults
from tests.integration.loaded import LoadedCluster
from tests.integration.moving_daemon import MOVING
from tests.integration.namespaces import Namespaces
from tests.integration.producers import Producers

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
def loaded(
    cluster: Cluster, topic: LoadedCluster | None = None, at: Sequence[ClusterNode] = ()
) -> Iterator[None]:
    """A topic, and producers of whose calls none may fail. They know all nodes, and try again what
    is answered UNAVAILABLE; or those at some nodes do not: after a kill a call may be written.
    """
    topic = topic or LoadedCluster(cluster, TOPIC, PARTITIONS)
    producers = Producers(
        at or cluster.nodes[:3],
        topic.ledger,
        TOPIC,
        pad_bytes=PAD_BYTES,
        anywhere=not at,
        knows=() if at else cluster.nodes,
    )

    def wait_answers(count: int) -> None:
        """Wait for further answers."""
        wanted = producers.answered.total() + count
        until_blocking(
            lambda: producers.answered.total() >= wanted,
            lambda: f"{producers.answered}, {producers.failed[-5:]}; logs:\n{cluster.logs()}",
        )

    with producers:
        wait_answers(200)
        yield
        wait_answers(500)
    assert producers.failed == [], f"{producers.failed}; logs:\n{cluster.logs()}"
    topic.audit()


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
    with loaded(cluster):
        spare = join(cluster, 4)
        ids, leader = {*cluster.ids()}, cluster.leader(f"{TOPIC}-0")
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


def test_a_node_is_drained_while_another_one_is_cut_off(tmp_path: Path) -> None:
    with Cluster(tmp_path, 4, Namespaces(4), config=SHORT, program=MOVING) as cluster:
        start(cluster, 1, 2, 3, 4)
        topic = LoadedCluster(cluster, TOPIC, PARTITIONS)
        drained = topic.leader()
        away, asked, other = cluster.others(drained)
        goes, kept = cluster.id_of(drained), {*cluster.ids()} - {cluster.id_of(drained)}

        def has_only_what_it_keeps() -> bool:
            status = asked.status()
            node = next(each for each in status.nodes if each.node_id == goes)
            return node.replicas == node.kept_replicas == 1 and not status.moves

        with loaded(cluster, topic, [asked, other]):
            for node in (drained, asked, other):
                cluster.network.cut(away.number, node.number)
                cluster.network.cut(node.number, away.number)
            until_blocking(lambda: not all(each.up for each in asked.status().nodes), cluster.logs)
            pixy(asked, "cluster", "drain", str(goes), "--yes")
            until_blocking(has_only_what_it_keeps, lambda: f"{asked.status()}; logs:\n{cluster.logs()}")
            cluster.network.heal()
            wait_replicas(cluster, asked, kept)


@pytest.mark.parametrize("replace_after", ["5s", "0s"])
def test_a_node_that_is_killed_for_good_is_replaced_unless_that_is_switched_off(
    cluster: Cluster, replace_after: str
) -> None:
    start(cluster, 1, 2, 3, replace_after=replace_after)
    join(cluster, 4, replace_after)
    topic = LoadedCluster(cluster, TOPIC, PARTITIONS)
    ids, gone = cluster.ids(), topic.leader()
    before, others = replicas(cluster[4]), cluster.others(gone)
    with loaded(cluster, topic, others):
        gone.kill()
        if replace_after == "5s":
            left = {node_id for node_id, node in ids.items() if node is not gone}
            wait_replicas(cluster, others[0], left)
    if replace_after == "0s":
        assert (replicas(others[0]), len(others[0].status().moves)) == (before, 0)


@pytest.mark.parametrize("killed", ["destination", "leader of a partition that moves", "leader of metadata"])
def test_moves_go_on_when_a_node_is_killed_and_comes_back(cluster: Cluster, killed: str) -> None:
    start(cluster, 1, 2, 3)
    spare = join(cluster, 4)
    topic = LoadedCluster(cluster, TOPIC, PARTITIONS)
    ids, drained = cluster.ids(), topic.leader()
    kept = {node_id for node_id, node in ids.items() if node is not drained}
    node = {"destination": ids[spare], "leader of metadata": cluster.leader("metadata")}.get(killed, drained)
    others = cluster.others(node)
    with loaded(cluster, topic, others):
        pixy(others[0], "cluster", "drain", str(cluster.id_of(drained)), "--yes")
        until_blocking(lambda: others[0].status().moves, cluster.logs)
        node.kill()
        node.start_nowait()
        wait_replicas(cluster, others[0], kept)
        node.wait_serving()
    cluster.wait_in_sync()


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


def has_removed(asked: ClusterNode, node_id: int) -> bool:
    """True if a node has been removed, False if others cannot do without it yet."""
    with grpc.insecure_channel(asked.address) as channel:
        try:
            ClusterStub(channel).RemoveNode(cluster_pb.RemoveNodeRequest(node_id=node_id), timeout=30)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return False
    return True


def test_a_node_joins_while_a_removed_one_is_needed_and_the_third_is_lost(cluster: Cluster) -> None:
    start(cluster, 1, 2, 3)
    asked, lost, goes = (cluster[number] for number in (1, 2, 3))
    ids = {number: cluster.id_of(cluster[number]) for number in (1, 2, 3)}
    pixy(asked, "topics", "create", TOPIC, "--partitions", "6", "--config", "replication=2")
    # Refused while a new partition has no leader, or a replica that is not complete.
    until_blocking(lambda: has_removed(asked, ids[3]), cluster.logs)
    # Before partitions are without the one that goes.
    lost.kill()
    until_blocking(lambda: not node_of(asked, ids[2]).up, cluster.logs)
    pixy(asked, "cluster", "forget", str(ids[2]), "--yes")
    join(cluster, 4)
    cluster[4].wait_serving()
    told = "\n".join(cluster[4].status().problems)
    assert f"node {ids[2]} will not come back: there cannot be one any more" in told, told
    assert f"node {ids[3]} was removed, and is a member of raft groups" in told, told
    pixy(cluster[4], "topics", "delete", TOPIC, "--yes")
    until_blocking(lambda: node_of(asked, ids[3]) is None, cluster.logs)
    goes.stop()
    assert not [each for each in cluster[4].status().problems if "raft group" in each]
    with LoadedCluster(cluster, "next").produced([asked, cluster[4]]):
        pass


def node_of(asked: ClusterNode, node_id: int) -> Any:
    """A node in the status, None if it is not listed."""
    return next((each for each in asked.status().nodes if each.node_id == node_id), None)


def test_a_move_is_taken_back(cluster: Cluster) -> None:
    start(cluster, 1, 2, 3)
    topic = LoadedCluster(cluster, TOPIC, PARTITIONS)
    with loaded(cluster, topic, cluster.nodes[:3]):
        before, spare = replicas(cluster[1]), join(cluster, 4)
        goes = min(before[0])
        # It cannot end: who is to have the replica is down.
        cluster[4].pause()
        pixy(cluster[1], "cluster", "move", f"{TOPIC}/0", str(goes), str(spare), "--yes")
        until_blocking(lambda: len(cluster[1].status().moves) == 1, cluster.logs)
        pixy(cluster[2], "cluster", "cancel", f"{TOPIC}/0", "--yes")
        until_blocking(lambda: not cluster[1].status().moves, cluster.logs)
        assert replicas(cluster[1]) == before
        cluster[4].resume()
    assert replicas(cluster[4]) == before


def move_first(cluster: Cluster, topic: str, to_node: int) -> int:
    """Begin to move the first partition of a topic; returns the node that it goes from."""
    asked = cluster.running[0]
    goes = min(replicas(asked, topic)[0])
    pixy(asked, "cluster", "move", f"{topic}/0", str(goes), str(to_node), "--yes")
    return goes


def test_a_move_waits_while_the_disk_of_its_destination_is_full(tmp_path: Path) -> None:
    with Cluster(tmp_path, 4, config=SHORT, program=FAULTY) as cluster:
        start(cluster, 1, 2, 3)
        spare = join(cluster, 4)
        topic = LoadedCluster(cluster, TOPIC, 1)
        with loaded(cluster, topic, cluster.nodes[:3]):
            faults = Faults(cluster[4].folder)
            faults.fill()
            before, goes = replicas(cluster[1]), move_first(cluster, TOPIC, spare)

            def tells() -> bool:
                return any(
                    "space" in copy.waits for move in cluster[1].status().moves for copy in move.copies
                )

            until_blocking(tells, lambda: f"{cluster[1].status()}; logs:\n{cluster.logs()}")
            assert replicas(cluster[1]) == before
            faults.heal()
            wait_replicas(cluster, cluster[1], before[0] - {goes} | {spare})


def test_a_topic_is_deleted_and_made_again_while_it_moves(cluster: Cluster) -> None:
    def copies() -> list[Path]:
        return [*cluster[4].folder.glob("data/default/topics/*-copy")]

    start(cluster, 1, 2, 3)
    cluster.create_topic("doomed", 1)
    fill_topic(cluster, 128 << 20, 64 << 10, topic="doomed")
    with loaded(cluster, LoadedCluster(cluster, TOPIC, PARTITIONS), cluster.nodes[:3]):
        move_first(cluster, "doomed", join(cluster, 4))
        until_blocking(copies, cluster.logs)
        pixy(cluster[2], "topics", "delete", "doomed", "--yes")
        again = LoadedCluster(cluster, "doomed", 1)
        with again.produced(cluster.nodes[:3]):
            until_blocking(lambda: not cluster[1].status().moves, cluster.logs)
    assert "a replica has a copy" not in cluster[4].log()
    until_blocking(lambda: not copies(), cluster.logs)
