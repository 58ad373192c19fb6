"""The workers in `examples`, one in each language: none loses a message when the daemon is killed,
and none acknowledges a message that it could not handle.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.fakes.waiting import PATIENCE_S, until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.judges.toolbox import go_worker, typescript_worker

pytestmark = [pytest.mark.process, pytest.mark.long]

WORKER = Path(__file__).parents[2] / "examples" / "worker.py"
COMMANDS = {
    "python": lambda: [sys.executable, str(WORKER)],
    "go": go_worker,
    "typescript": typescript_worker,
}
TOPIC, GROUP = "orders", "workers"
MESSAGES = 100
NO_TEXT = b"\xff"


class Worker:
    """A running worker; what it prints goes to files."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._output, self._errors = folder / "output", folder / "errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, stdin=subprocess.DEVNULL)

    def handled(self) -> set[bytes]:
        """Messages that it has printed, those of whole lines."""
        return set(self._output.read_bytes().split(b"\n")[:-1])

    def complaints(self, of: str) -> list[str]:
        return [line for line in self._errors.read_text().splitlines() if of in line]

    def errors(self) -> str:
        return self._errors.read_text()


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    """A running daemon. Its end waits only briefly for the acknowledgement that never comes."""
    running = make_daemon({"shutdown_timeout": "1s"})
    running.start()
    return running


@pytest.fixture(params=COMMANDS)
def worker(request: pytest.FixtureRequest, daemon: Daemon, tmp_path: Path) -> Iterator[Worker]:
    """A worker in each language."""
    worker = Worker([*COMMANDS[request.param](), daemon.address, TOPIC, GROUP], tmp_path)
    with ExitStack() as stack:
        stack.enter_context(worker.process)
        stack.callback(worker.process.kill)
        yield worker


def produce(pixy: KafkaPixyStub, messages: set[bytes]) -> None:
    for message in messages:
        pixy.Produce(pb.ProdRq(topic=TOPIC, key_undefined=True, message=message), timeout=PATIENCE_S)


def remaining(pixy: KafkaPixyStub) -> list[bytes]:
    """Messages that the group has not acknowledged, as a new daemon hands them out."""
    found = []

    def take_all() -> None:
        while True:
            request = pb.ConsNAckRq(topic=TOPIC, group=GROUP, no_ack=True)
            found.append(pixy.ConsumeNAck(request, timeout=PATIENCE_S).message)

    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        take_all()
    return found


def test_a_worker_handles_every_message_although_the_daemon_is_killed(daemon: Daemon, worker: Worker) -> None:
    first, second = ({b"%d" % (number + at) for number in range(MESSAGES)} for at in (0, MESSAGES))
    produce(daemon.stub(), first)
    until_blocking(lambda: len(worker.handled()) >= MESSAGES // 2, worker.errors)
    daemon.kill()
    until_blocking(lambda: len(worker.complaints("again in")) >= 2, worker.errors)
    daemon.start()
    produce(daemon.stub(), {*second, NO_TEXT})
    until_blocking(lambda: worker.handled() == first | second, worker.errors)
    until_blocking(lambda: worker.complaints("not handled"), worker.errors)
    worker.process.terminate()
    assert worker.process.wait(PATIENCE_S) == 0, worker.errors()
    daemon.stop()
    daemon.start()
    assert remaining(daemon.stub()) == [NO_TEXT]


@pytest.mark.parametrize("language", COMMANDS)
def test_a_worker_ends_when_no_repetition_could_help(daemon: Daemon, language: str) -> None:
    command = [*COMMANDS[language](), daemon.address, "no/topic", GROUP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "no/topic" in done.stderr
    assert "again in" not in done.stderr
