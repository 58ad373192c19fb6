"""kafka-pixy's clients work unchanged: stubs of the original interface, in a process that knows nothing of pixy."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import seed_client
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.process

ORIGINAL = Path(__file__).parents[1] / "proto" / "kafka_pixy.proto"
SECONDS_MAX = 120.0
CONSUMER = {"long_polling_timeout": "300ms", "offsets_commit_interval": "20ms"}
CONFIG = {
    "shutdown_timeout": "500ms",  # some scenarios leave offers without an ack
    "proxies": {
        "default": {"producer": {"max_message_bytes": 100}, "consumer": CONSUMER},
        "closed": {"auto_create_topics": False, "consumer": CONSUMER},
        "silent": {"consumer": {**CONSUMER, "disabled": True}},
        "narrow": {"consumer": {**CONSUMER, "channel_buffer_size": 2}},
        "patient": {"consumer": {**CONSUMER, "long_polling_timeout": "30s"}},
    },
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str | None]]]:
    """What each scenario came to, for both kinds of stub, against one daemon."""
    folder = tmp_path_factory.mktemp("seed-client")
    stubs = folder / "stubs"
    stubs.mkdir()
    outputs = [f"--python_out={stubs}", f"--grpc_python_out={stubs}"]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ORIGINAL.parent}", *outputs, ORIGINAL.name]
    subprocess.run(protoc, check=True, timeout=SECONDS_MAX, capture_output=True)
    with Daemon(folder / "daemon", CONFIG) as daemon:
        yield {mode: run_client(daemon.address, stubs, mode) for mode in ("sync", "aio")}
        daemon.stop()


def run_client(address: str, stubs: Path, mode: str) -> dict[str, str | None]:
    command = [sys.executable, "-I", seed_client.__file__, address, str(stubs), mode]
    done = subprocess.run(
        command, check=False, timeout=SECONDS_MAX, capture_output=True, text=True, cwd=stubs
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ["sync", "aio"])
@pytest.mark.parametrize("scenario", seed_client.SCENARIOS)
def test_kafka_pixys_client(results: dict[str, dict[str, str | None]], mode: str, scenario: str) -> None:
    failure = results[mode][scenario]
    if failure is not None:
        pytest.fail(failure, pytrace=False)
