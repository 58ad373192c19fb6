"""Commands that run for long, while the daemon ends and starts again or a node of several is lost,
and messages as large as the daemon takes.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.integration.clusters import Cluster
from tests.integration.daemon import Daemon

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS = 120.0
PIXY = str(Path(sys.executable).with_name("pixy"))


@contextmanager
def running(addresses: str, *args: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "PIXY_ADDRESS": addresses}
    pipe = subprocess.PIPE
    with subprocess.Popen([PIXY, *args], env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def lines_until(process: "subprocess.Popen[bytes]", last: bytes) -> list[bytes]:
    """Lines of the output up to one."""
    assert process.stdout is not None
    lines: list[bytes] = []
    while not lines or lines[-1] != last:
        line = process.stdout.readline()
        assert line, f"ended after {lines}: {process.stderr.read() if process.stderr else b''!r}"
        lines.append(line)
    return lines


class Pipeline:
    """`produce` from a pipe, and `consume -n 0` and `peek -f` of what it writes, of topic t.

    Args:
        addresses: of the daemon, or of several nodes.
    """

    def __init__(self, stack: ExitStack, addresses: str) -> None:
        self._consume = stack.enter_context(running(addresses, "consume", "t", "-g", "g", "-n", "0"))
        self._peek = stack.enter_context(running(addresses, "peek", "t", "-f", "--raw"))
        self._produce = stack.enter_context(running(addresses, "produce", "t"))
        self._written: list[bytes] = []
        self._consumed: list[bytes] = []
        self._peeked: list[bytes] = []

    def carry(self) -> None:
        """Write a hundred lines more, and wait until both readers have them."""
        lines = [b"%d\n" % (len(self._written) + at) for at in range(100)]
        assert self._produce.stdin is not None
        self._produce.stdin.write(b"".join(lines))
        self._produce.stdin.flush()
        self._written += lines
        self._consumed += lines_until(self._consume, lines[-1])
        self._peeked += lines_until(self._peek, lines[-1])

    def end(self) -> bytes:
        """End the commands; nothing is missing. Returns what `consume` has said."""
        assert self._produce.stdin is not None
        self._produce.stdin.close()
        assert self._produce.wait(SECONDS) == 0
        self._consume.send_signal(signal.SIGINT)
        _, said = self._consume.communicate(timeout=SECONDS)
        for lines in (self._consumed, self._peeked):
            assert list(dict.fromkeys(lines)) == self._written
        return said


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_commands_outlive_restarts_of_the_daemon(daemon: Daemon, end: signal.Signals) -> None:
    TopicsStub(daemon.channel()).CreateTopic(topics_pb.CreateTopicRequest(topic="t", partitions=1))
    with ExitStack() as stack:
        pipeline = Pipeline(stack, daemon.address)
        pipeline.carry()
        for _ in range(2):
            daemon.signal(end)
            daemon.wait()
            daemon.start()
            pipeline.carry()
        said = pipeline.end()
        daemon.close_channels()
    assert len(said.splitlines()) == 2, said
    assert b"trying again until it answers" in said


def test_commands_go_on_at_another_node_of_their_list(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, ExitStack() as stack:
        cluster.start()
        cluster[1].wait_serving()
        cluster.create_topic("t", 1)
        pipeline = Pipeline(stack, f"{cluster[1].address},{cluster[2].address}")
        pipeline.carry()
        cluster[1].kill()
        pipeline.carry()
        cluster.start(1)
        cluster.wait_in_sync()
        cluster[2].kill()
        pipeline.carry()
        said = pipeline.end()
    assert said.count(b"trying again until it answers") >= 2, said


def test_lines_as_large_as_a_message_may_be_are_produced(daemon: Daemon) -> None:
    lines = [b"%d" % at * (size) for at, size in enumerate((999_929, 999_930, 999_965, 1_000_000))]
    with running(daemon.address, "produce", "t", "-") as produce:
        _, said = produce.communicate(b"\n".join(lines), timeout=SECONDS)
    assert produce.returncode == 0, said
    with running(daemon.address, "peek", "t", "--raw") as peek:
        shown, _ = peek.communicate(timeout=SECONDS)
    assert sorted(shown.splitlines()) == lines
    with running(daemon.address, "produce", "t", "-") as produce:
        _, said = produce.communicate(b"small\n" + b"x" * 1_000_001, timeout=SECONDS)
    assert produce.returncode == 1
    assert b"line 2: the message has 1000001 bytes" in said
