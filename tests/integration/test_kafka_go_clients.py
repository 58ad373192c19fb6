"""The client of Kafka's protocol in `examples`, in Go with franz-go, at a real daemon."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from pixy.access import MECHANISMS, make_credential, user_line
from pixy.proto import kafkapixy_pb2 as pb
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config
from tests.judges.toolbox import kafka_go

pytestmark = [pytest.mark.process, pytest.mark.long]

TOPIC, GROUP, PARTITIONS = "lines", "workers", 4
LINES = [f"line {number}" for number in range(1000)]
CONFIG = {
    "kafka_addr": "127.0.0.1:0",
    "grpc": {"handshake_timeout": "120s"},  # on a machine with much other work
    **proxy_config(default_partitions=PARTITIONS, storage={"group_initial_rebalance_delay": "0.1s"}),
}


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Iterator[Daemon]:
    with make_daemon(CONFIG) as daemon:
        yield daemon


class Client:
    """A running client; what it prints goes to files.

    Args:
        stack: ends it.
        lines: that it produces.
    """

    def __init__(
        self, stack: ExitStack, daemon: Daemon, folder: Path, lines: Sequence[str] = (), **login: str
    ) -> None:
        folder.mkdir()
        self._output, self._errors = folder / "output", folder / "errors"
        given = folder / "given"
        given.write_text("".join(f"{line}\n" for line in lines))
        command = [kafka_go(), daemon.addresses["kafka"], TOPIC, GROUP]
        with given.open() as file, self._output.open("w") as output, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=file, stdout=output, stderr=errors, env={**os.environ, **login}
            )
        stack.enter_context(self.process)
        stack.callback(self.process.kill)

    def handled(self) -> dict[str, tuple[int, int]]:
        """Partition and offset by line."""
        whole = self._output.read_text().rpartition("\n")[0].splitlines()
        found = (line.split(" ", 2) for line in whole)
        return {line: (int(partition), int(offset)) for partition, offset, line in found}

    def errors(self) -> str:
        return self._errors.read_text()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.errors()


def committed(daemon: Daemon) -> int:
    answer = daemon.stub().GetOffsets(pb.GetOffsetsRq(topic=TOPIC, group=GROUP), timeout=10)
    return sum(max(each.offset, 0) for each in answer.offsets)


def test_franz_go_produces_and_a_group_of_it_reads_each_line_once(daemon: Daemon, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = Client(stack, daemon, tmp_path / "one", LINES)
        until_blocking(lambda: len(one.handled()) == len(LINES), one.errors)
        assert {*one.handled()} == {*LINES}
        until_blocking(lambda: committed(daemon) == len(LINES), one.errors)
        more = [f"more {number}" for number in range(1000)]
        two = Client(stack, daemon, tmp_path / "two", more)
        until_blocking(lambda: {*one.handled(), *two.handled()} >= {*LINES, *more}, two.errors)
        one.stop()
        last = Client(stack, daemon, tmp_path / "last", ["the end"])
        until_blocking(lambda: "the end" in {*two.handled(), *last.handled()}, last.errors)
        two.stop()
        last.stop()
        places = [place for each in (one, two, last) for place in each.handled().values()]
    assert len({*places}) == len(LINES) + len(more) + 1


def test_franz_go_goes_on_when_the_daemon_starts_again(daemon: Daemon, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = Client(stack, daemon, tmp_path / "one", LINES)
        until_blocking(lambda: len(one.handled()) == len(LINES), one.errors)
        daemon.config["kafka_addr"] = daemon.addresses["kafka"]
        daemon.restart()
        more = Client(stack, daemon, tmp_path / "more", ["after"])
        until_blocking(lambda: "after" in {*one.handled(), *more.handled()}, one.errors)
        assert one.process.poll() is None
        one.stop()
        more.stop()


def test_franz_go_logs_in(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch(0o600)
    credentials = {each: make_credential(each, "secret", bytes(16), 4096) for each in MECHANISMS}
    users.write_text(user_line("alice", credentials))
    with make_daemon({**CONFIG, "sasl": {"users_file": str(users)}}) as daemon, ExitStack() as stack:
        one = Client(stack, daemon, tmp_path / "one", LINES, KAFKA_USER="alice", KAFKA_PASSWORD="secret")
        until_blocking(lambda: len(one.handled()) == len(LINES), one.errors)
        one.stop()
        wrong = Client(stack, daemon, tmp_path / "two", LINES, KAFKA_USER="alice", KAFKA_PASSWORD="Secret")
        until_blocking(lambda: "logins have failed" in daemon.log(), lambda: wrong.errors() + daemon.log())
        assert wrong.handled() == {}
