"""Commands that run for long, while the daemon ends and starts again."""

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
from tests.integration.daemon import Daemon

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS = 60.0
PIXY = str(Path(sys.executable).with_name("pixy"))


@contextmanager
def running(daemon: Daemon, *args: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "PIXY_ADDRESS": daemon.address}
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


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_commands_outlive_restarts_of_the_daemon(daemon: Daemon, end: signal.Signals) -> None:
    TopicsStub(daemon.channel()).CreateTopic(topics_pb.CreateTopicRequest(topic="t", partitions=1))
    with ExitStack() as stack:
        consume = stack.enter_context(running(daemon, "consume", "t", "-g", "g", "-n", "0"))
        peek = stack.enter_context(running(daemon, "peek", "t", "-f", "--raw"))
        produce = stack.enter_context(running(daemon, "produce", "t"))
        assert produce.stdin is not None
        consumed, peeked = [], []
        for part in range(3):
            if part:
                daemon.signal(end)
                daemon.wait()
                daemon.start()
            lines = [b"%d\n" % (100 * part + at) for at in range(100)]
            produce.stdin.write(b"".join(lines))
            produce.stdin.flush()
            consumed += lines_until(consume, lines[-1])
            peeked += lines_until(peek, lines[-1])
        produce.stdin.close()
        assert produce.wait(SECONDS) == 0
        consume.send_signal(signal.SIGINT)
        _, said = consume.communicate(timeout=SECONDS)
        daemon.close_channels()
    written = [b"%d\n" % number for number in range(300)]
    assert list(dict.fromkeys(consumed)) == list(dict.fromkeys(peeked)) == written
    assert len(said.splitlines()) == 2, said
    assert b"trying again until it answers" in said
