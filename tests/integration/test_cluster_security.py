"""Secrets and certificates of the nodes of a cluster: a secret that is changed step by step, mutual
TLS, and nodes that have neither, which do not start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode, killed_in_the_end
from tests.integration.daemon import wait_until_refused
from tests.integration.group_clients import GroupConsumers
from tests.integration.loaded import LoadedCluster
from tests.integration.networks import Loopback
from tests.integration.producers import ANYWHERE, Producers
from tests.peers.certificates import make_authority, make_node_certificate

pytestmark = [pytest.mark.process, pytest.mark.slow]

OLD, NEW = "0123456789abcdef" * 2, "fedcba9876543210" * 2
NODES = 3
ROLLOUT = [(OLD, NEW), (NEW, OLD), (NEW, "")]
"""Steps of docs/cluster.md, "A new secret": secret_file and second_secret_file after each."""


def configure(node: ClusterNode, **options: Any) -> None:
    """Change options of `cluster` for the next start."""
    node.config["cluster"] = {**node.config["cluster"], **options}


def write_secret(path: Path, secret: str) -> None:
    """Replace a file atomically, or remove it."""
    if not secret:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(secret)
    new.replace(path)


def write_secrets(node: ClusterNode, first: str, second: str) -> None:
    for option, secret in (("secret_file", first), ("second_secret_file", second)):
        write_secret(Path(node.config["cluster"][option]), secret)


def is_up(cluster: Cluster) -> bool:
    return all(
        len(status.nodes) == NODES and all(each.up and not each.problem for each in status.nodes)
        for status in (node.status() for node in cluster.nodes)
    )


def restart(cluster: Cluster, node: ClusterNode) -> None:
    """A clean restart, once the others can do without the node; all are connected afterwards."""
    node_id = cluster.id_of(node)

    def may_stop() -> bool:
        return not any(each.reasons_to_stay for each in node.status().nodes if each.node_id == node_id)

    until_blocking(may_stop, cluster.logs)
    node.stop()
    node.start()
    until_blocking(lambda: is_up(cluster), cluster.logs)


@contextmanager
def loaded(cluster: Cluster) -> Iterator[None]:
    """Producers and a consumer with the addresses of all nodes: no call is refused, every message
    is consumed, and nothing is lost or doubled.

    On a machine with many other processes a call may miss its deadline of 5 s.
    """
    topic = LoadedCluster(cluster, "rollout")
    anywhere = "ipv4:" + ",".join(node.address for node in cluster.nodes)
    with GroupConsumers([anywhere], topic.topic, "g") as consumers:
        with Producers(cluster.nodes, topic.ledger, topic.topic, anywhere=True) as producers:
            yield
            before = producers.answered[ANYWHERE]
            until_blocking(lambda: producers.answered[ANYWHERE] > before + 20)
        answered = set(topic.ledger.acknowledged.values())
        until_blocking(lambda: answered <= consumers.times().keys(), lambda: f"{consumers.failed[-5:]}")
    late = [failed for failed in producers.failed if failed.code is grpc.StatusCode.DEADLINE_EXCEEDED]
    assert producers.failed == late, producers.failed
    topic.audit()


@pytest.mark.long
def test_a_secret_is_changed_without_a_stop(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            node.folder.mkdir()
            secret, second = str(node.folder / "secret"), str(node.folder / "second")
            configure(node, secret_file=secret, second_secret_file=second)
            write_secrets(node, OLD, "")
        cluster.start()
        one, two, three = cluster.nodes
        with loaded(cluster):
            for first, second in ROLLOUT:
                # In the middle of a step a node without it connects with those that have it, which
                # have read their files again.
                for node in (one, two):
                    write_secrets(node, first, second)
                restart(cluster, three)
                write_secrets(three, first, second)
        # The old secret alone lets nobody in any more.
        three.stop()
        write_secrets(three, OLD, "")
        three.start_nowait()
        differ = "the shared secrets of the two nodes differ"
        for node in cluster.nodes:
            until_blocking(lambda node=node: differ in node.log(), node.log)  # type: ignore[misc]
        until_blocking(lambda: differ in " ".join(one.status().problems), cluster.logs)
        write_secrets(three, NEW, "")
        three.wait_serving()
        until_blocking(lambda: is_up(cluster), cluster.logs)


def test_a_node_on_loopback_without_a_secret_does_not_start_and_says_how_to_make_one(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2) as cluster:
        one, other = cluster.nodes
        secret = one.config["cluster"]["secret_file"]
        for node in cluster.nodes:
            configure(
                node, join=[cluster.join[0], cluster.join[node.number - 1]][: node.number], secret_file=""
            )
            code, log = wait_until_refused(node)
            assert code == 2
            assert "every process of this machine could join: nodes need a secret" in log
            assert "openssl rand -hex 32" in log
            assert "cluster.secret_file (PIXY_CLUSTER__SECRET_FILE)" in log
            assert not (node.folder / "data").exists()
            configure(node, secret_file=secret)
            node.start()
        # One that has others listens, whatever its list says: its directory knows.
        until_blocking(lambda: len(one.status().nodes) == 2, cluster.logs)
        one.stop()
        configure(one, join=[], secret_file="")
        code, log = wait_until_refused(one)
        assert code == 2
        assert "is for other nodes, and nobody has to prove to be one: set cluster.secret_file" in log
        configure(one, secret_file=secret)
        one.start()
        other.wait_serving()


def tls(folder: Path, name: str, authority: str) -> dict[str, str]:
    """`cluster.tls` with the certificate of a node, and the authority that it trusts."""
    return {
        "cert_file": str(folder / f"{name}.pem"),
        "key_file": str(folder / f"{name}.key"),
        "ca_file": str(folder / f"{authority}.pem"),
    }


def test_nodes_with_certificates_form_a_cluster_and_let_no_other_in(tmp_path: Path) -> None:
    for authority in ("ours", "theirs"):
        make_authority(tmp_path, authority)
    make_node_certificate(tmp_path, "stranger", "theirs")
    network = Loopback(NODES + 1)
    with Cluster(tmp_path, NODES, network) as cluster:
        for node in cluster.nodes:
            make_node_certificate(tmp_path, str(node.number), "ours")
            configure(node, secret_file="", tls=tls(tmp_path, str(node.number), "ours"))
        cluster.start()
        with LoadedCluster(cluster).produced() as producers:
            pass
        assert producers.failed == []

        asked = cluster[1]
        join = [cluster.join[0], network.advertised(NODES + 1)]
        for trusts, reason, told in (
            ("ours", "does not trust the certificate of this node", "certificate verify failed"),
            ("theirs", "certificate verify failed", "does not trust the certificate of this node"),
        ):
            options = {"cluster": {"join": join, "tls": tls(tmp_path, "stranger", trusts)}}
            stranger = ClusterNode(NODES + 1, network, tmp_path / trusts, options)
            with killed_in_the_end(stranger):
                stranger.start_nowait()
                for node, text in ((stranger, reason), (asked, told)):
                    until_blocking(lambda node=node, text=text: text in node.log(), node.log)  # type: ignore[misc]
                assert not stranger.status().cluster_id
        assert len(asked.status().nodes) == NODES
        assert asked.status().problems == []
