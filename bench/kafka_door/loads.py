"""Clients that nobody here wrote: kcat, and the performance tools of Apache Kafka. Each load is
bounded by a number of messages and by time, and what a producer has sent must be in the topic.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import perf_counter

from bench.kafka_door.sides import Side
from tests.conftest import require
from tests.integration.kafka_tools import kafka_java

MESSAGE_BYTES = 100
_SECONDS_MAX = 120.0
_TOOLS = "org.apache.kafka.tools"
_CLIENT_JAVA = ("-Xmx512m",)
"""Heap of Kafka's own scripts for their tools; the rest are Java's defaults."""
_LETTERS = bytes(range(ord("A"), ord("Z") + 1))
"""Of which ProducerPerformance makes its messages too, so both compress alike."""


def write_messages(file: Path, count: int) -> Path:
    """Write a file of lines of random letters, one for a message."""
    rng = Random(1)
    table = bytes(_LETTERS[at % len(_LETTERS)] for at in range(256))
    with file.open("wb") as out:
        for begin in range(0, count, 10_000):
            letters = rng.randbytes(MESSAGE_BYTES * min(10_000, count - begin)).translate(table)
            lines = (letters[at : at + MESSAGE_BYTES] for at in range(0, len(letters), MESSAGE_BYTES))
            out.write(b"\n".join(lines) + b"\n")
    return file


def kcat_produce(side: Side, topic: str, messages: Path, count: int, codec: str = "none") -> float:
    """Messages per second of `kcat -P`, from its start to its end."""
    with messages.open("rb") as lines:
        took = _timed([*_kcat(side, topic), "-P", "-z", codec], lines.fileno())
    _check_written(side, topic, count)
    return count / took


def kcat_consume(side: Side, topic: str, count: int) -> float:
    """Messages per second of `kcat -C`, from its start to its end."""
    command = [*_kcat(side, topic), "-C", "-q", "-e", "-o", "beginning"]
    return count / _timed(command, subprocess.DEVNULL)


def java_produce(side: Side, topic: str, count: int, options: Sequence[str] = ()) -> float:
    """Messages per second, as ProducerPerformance tells them.

    Args:
        options: of the producer.
    """
    properties = ("--command-property", f"bootstrap.servers={side.address}", *options)
    size = ("--num-records", str(count), "--record-size", str(MESSAGE_BYTES), "--throughput", "-1")
    printed = _java("ProducerPerformance", "--topic", topic, *size, *properties)
    _check_written(side, topic, count)
    rate = re.findall(rf"^{count} records sent, ([0-9.]+) records/sec", printed, re.MULTILINE)
    return float(rate[0])


def java_consume(side: Side, topic: str, count: int) -> float:
    """Messages per second, as ConsumerPerformance tells them, from when it has joined its group."""
    wanted = ("--num-records", str(count), "--timeout", "30000", "--hide-header")
    printed = _java("ConsumerPerformance", "--bootstrap-server", side.address, "--topic", topic, *wanted)
    fields = printed.splitlines()[-1].split(", ")
    if int(fields[4]) < count:
        raise RuntimeError(f"{fields[4]} of {count} messages of {side.name} were read")
    return float(fields[9])


def java_latency_ms(side: Side, topic: str, count: int) -> float:
    """Mean time of a lone message from a producer to a consumer, as EndToEndLatency tells it."""
    size = ("--num-records", str(count), "--record-size", str(MESSAGE_BYTES))
    place = ("--bootstrap-server", side.address, "--topic", topic)
    printed = _java("EndToEndLatency", *place, *size, "--producer-acks", "all")
    return float(re.findall(r"Avg latency: ([0-9.]+) ms", printed)[0])


@contextmanager
def kcat_flat_out(side: Side, topic: str, messages: Path) -> Iterator[None]:
    """Run `kcat -P` in the background, which always has messages to send."""
    block = messages.read_bytes()[: (MESSAGE_BYTES + 1) * 10_000]
    over = Event()
    kcat = subprocess.Popen([*_kcat(side, topic), "-P"], stdin=subprocess.PIPE)
    assert kcat.stdin is not None
    pipe = kcat.stdin

    def feed() -> None:
        begun = perf_counter()
        with suppress(BrokenPipeError), pipe:
            while not over.is_set() and perf_counter() - begun < _SECONDS_MAX:
                pipe.write(block)

    feeder = Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        over.set()
        try:
            code = kcat.wait(_SECONDS_MAX)
        finally:
            kcat.kill()
            kcat.wait()
            feeder.join()
    if code:
        raise RuntimeError(f"kcat ended with {code}")


def _kcat(side: Side, topic: str) -> list[str]:
    return [require("kcat", "apt-get install kcat"), "-b", side.address, "-t", topic]


def _timed(command: list[str], stdin: int) -> float:
    """Seconds of a command. What was written before is on the disk at its start."""
    os.sync()
    begun = perf_counter()
    subprocess.run(command, check=True, stdin=stdin, stdout=subprocess.DEVNULL, timeout=_SECONDS_MAX)
    return perf_counter() - begun


def _java(tool: str, *arguments: str) -> str:
    os.sync()
    command = [*kafka_java(_CLIENT_JAVA), f"{_TOOLS}.{tool}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _check_written(side: Side, topic: str, count: int) -> None:
    written = side.count(topic)
    if written < count:
        raise RuntimeError(f"{count} messages were sent to {side.name}, but only {written} are there")
