"""kafka-pixy's clients work unchanged on every kind of cluster: stubs of the original interface, in
a process without pixy. With several nodes their connections go to one after the other.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration import kafka_pixy_client
from tests.integration.balancer import Balancer
from tests.integration.clusters import Cluster
from tests.integration.daemon import Daemon
from tests.integration.fake_daemon import FAKE
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.process

ORIGINAL = Path(__file__).parents[1] / "proto" / "kafka_pixy.proto"
SECONDS_MAX = 240.0
KINDS = ("embedded", "nodes", "fake", pytest.param("kafka", marks=pytest.mark.kafka))


def config(cluster: dict[str, Any]) -> dict[str, Any]:
    """Configuration with the clusters of the scenarios, all of one kind."""
    consumer = {"long_polling_timeout": "300ms", "offsets_commit_interval": "20ms"}
    proxies: dict[str, dict[str, Any]] = {
        "default": {"producer": {"max_message_bytes": 100}, "consumer": consumer},
        "closed": {"auto_create_topics": False, "consumer": consumer},
        "silent": {"consumer": {**consumer, "disabled": True}},
        # Long enough for five calls to arrive, also at a machine that pauses.
        "narrow": {"consumer": {**consumer, "channel_buffer_size": 2, "long_polling_timeout": "5s"}},
        "patient": {"consumer": {**consumer, "long_polling_timeout": "30s"}},
    }
    return {
        "shutdown_timeout": "500ms",  # some scenarios leave unacked offers
        "proxies": {name: {**proxy, **cluster} for name, proxy in proxies.items()},
    }


@pytest.fixture(scope="module", params=KINDS)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, str | None]]]:
    """Results of the scenarios with both kinds of stub, against one daemon."""
    cluster: dict[str, Any] = {"kind": "embedded"}
    prefix = ""
    if request.param == "kafka":
        kafka: KafkaCluster = request.getfixturevalue("kafka")
        cluster, prefix = {"kafka": {"seed_peers": kafka.addresses}}, "seed-"
    folder = tmp_path_factory.mktemp("seed-client")
    stubs = folder / "stubs"
    stubs.mkdir()
    outputs = [f"--python_out={stubs}", f"--grpc_python_out={stubs}"]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ORIGINAL.parent}", *outputs, ORIGINAL.name]
    subprocess.run(protoc, check=True, timeout=SECONDS_MAX, capture_output=True)
    with served(request.param, folder, config(cluster)) as address:
        yield {mode: run_client(address, stubs, mode, prefix) for mode in ("sync", "aio")}


@contextmanager
def served(kind: str, folder: Path, options: dict[str, Any]) -> Iterator[str]:
    """The address of a daemon, or of a load balancer in front of several."""
    if kind == "nodes":
        with Cluster(folder, config=options) as cluster:
            cluster.start()
            with Balancer([node.address for node in cluster.nodes]) as balancer:
                yield balancer.address
            for node in cluster.nodes:
                node.stop()
        return
    program = FAKE if kind == "fake" else ("-m", "pixy")
    with Daemon(folder / "daemon", options, program) as daemon:
        yield daemon.address
        daemon.stop()


def run_client(address: str, stubs: Path, mode: str, prefix: str) -> dict[str, str | None]:
    command = [sys.executable, "-I", kafka_pixy_client.__file__, address, str(stubs), mode, prefix]
    done = subprocess.run(
        command, check=False, timeout=SECONDS_MAX, capture_output=True, text=True, cwd=stubs
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ["sync", "aio"])
@pytest.mark.parametrize("scenario", kafka_pixy_client.SCENARIOS)
def test_kafka_pixys_client(results: dict[str, dict[str, str | None]], mode: str, scenario: str) -> None:
    failure = results[mode][scenario]
    if failure is not None:
        pytest.fail(failure, pytrace=False)
