"""An upgrade of three nodes from the release before, one at a time and under load.

The nodes of the release before are real: its wheel is built from the history of the repository.
"""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import missing, require
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.loaded import LoadedCluster
from tests.integration.producers import ANYWHERE, Producers
from tests.integration.test_cluster_rolling_restart import may_stop

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
RELEASE_BEFORE = "fbc5d7e3e0d2e3d5da7946e1ef89a714fdd0d812"
"""Newest commit whose nodes speak protocol 1 alone."""


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the packages of its wheel."""
    git = require("git", "apt-get install git")
    there = subprocess.run(
        [git, "-C", ROOT, "cat-file", "-e", RELEASE_BEFORE], check=False, capture_output=True
    )
    if there.returncode:
        missing(f"commit {RELEASE_BEFORE}", "git fetch --unshallow")
    folder = tmp_path_factory.mktemp("release-before")
    source, packages = folder / "source", folder / "packages"
    source.mkdir()
    archive = folder / "source.tar"
    subprocess.run([git, "-C", ROOT, "archive", "--output", archive, RELEASE_BEFORE], check=True)
    subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    # The only requirement of that release that this one does not have.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--target", packages, "crc32c"], check=True)
    return packages


@pytest.fixture
def cluster(tmp_path: Path, release_before: Path) -> Iterator[Cluster]:
    """Three nodes of the release before."""
    with Cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            be_of(node, release_before)
        cluster.start()
        yield cluster


def be_of(node: ClusterNode, release: Path | None) -> None:
    """Have the next start of a node be of a release, None for the present one."""
    node._prefix = () if release is None else ("env", f"PYTHONPATH={release}")
    for option in ("management_addr", "kafka_addr"):
        # The release before does not know it.
        node.config.pop(option, None)
        if release is None:
            node.config[option] = ""


def test_nodes_are_upgraded_one_by_one(cluster: Cluster, release_before: Path) -> None:
    loaded = LoadedCluster(cluster, "upgraded", 6)
    with Producers(cluster.nodes, loaded.ledger, loaded.topic, anywhere=True) as producers:
        for node in cluster.nodes:
            until_blocking(lambda node=node: may_stop(cluster, node), cluster.logs)  # type: ignore[misc]
            before = producers.answered[ANYWHERE]
            node.stop()
            be_of(node, None)
            node.start()
            until_blocking(lambda before=before: producers.answered[ANYWHERE] > before + 50)  # type: ignore[misc]
        cluster.wait_in_sync()
        # All speak protocol 2: a node of the release before is no node of the cluster any more.
        downgraded, *others = cluster.nodes
        until_blocking(lambda: may_stop(cluster, downgraded), cluster.logs)
        downgraded.stop()
        be_of(downgraded, release_before)
        downgraded.start_nowait()
        until_blocking(lambda: all(refuses_protocol_1(node) for node in others), cluster.logs)
        downgraded.kill()
        be_of(downgraded, None)
        downgraded.start()
        cluster.wait_in_sync()
    assert producers.failed == []
    loaded.audit()


def refuses_protocol_1(node: ClusterNode) -> bool:
    return "peer protocol 1 is spoken here no more" in node.log()
