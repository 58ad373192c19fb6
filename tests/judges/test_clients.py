"""Real clients of kafkapixy.proto, on grpcio, grpc-go and grpc-java, call every RPC of a real
daemon and get the same responses.
"""

import asyncio
import subprocess

import grpc
import pytest

from tests.integration.daemon import Daemon
from tests.judges.daemons import Certificate
from tests.judges.python_clients import talk_aio, talk_sync
from tests.judges.toolbox import go_judge, java_judge

pytestmark = pytest.mark.process

SECONDS_MAX = 240

TRANSCRIPT = """\
Produce: partition 0 offset 0
Produce without a key: partition 0 offset 1
Produce asynchronously: partition -1 offset -1
Produce much: partition 0 offset 3
ConsumeNAck: partition 0 offset 0, key k, message first, header a=1, header b=2
ConsumeNAck that acks: partition 0 offset 1, no key, message second
Ack: ok
ConsumeNAck that acks itself: partition 0 offset 2, no key, message third
ConsumeNAck of much: partition 0 offset 3, no key, message 900000 bytes
ListConsumers: group judges client judges partitions [0]
SetOffsets: ok
GetOffsets: 1 partitions, partition 0 begin 0 end 4 count 4 offset 1 lag 3
GetTopicMetadata: 1 partitions, partition 0 leader 1 replicas [1] isr [1]
ListTopics: 1 partitions, partition 0 leader 1 replicas [1] isr [1]
Produce to nowhere: INVALID_ARGUMENT proxy `nowhere` does not exist
Ack of nothing: NOT_FOUND unknown topic TOPIC-unknown
ConsumeNAck in too little time: DEADLINE_EXCEEDED
Produce at once: 1000 offsets
"""


def check(lines: list[str], topic: str) -> None:
    # A long poll ends at the caller's deadline; it is a race whether the response or the deadline
    # comes first.
    told = [
        line.replace("too little time: NOT_FOUND", "too little time: DEADLINE_EXCEEDED") for line in lines
    ]
    assert told == TRANSCRIPT.replace("TOPIC", topic).splitlines()


def talk_go(daemon: Daemon, topic: str, *, deadlines: bool, certificate: Certificate | None) -> list[str]:
    command = [go_judge("kafkapixy"), "-address", daemon.address, "-topic", topic]
    command += ["-deadline"] if deadlines else []
    return run([*command, "-ca", str(certificate.path)] if certificate else command)


def talk_java(daemon: Daemon, topic: str, *, deadlines: bool, certificate: Certificate | None) -> list[str]:
    authority = str(certificate.path) if certificate else ""
    return run([*java_judge(), daemon.address, topic, "deadline" if deadlines else "none", authority])


def run(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def talk_grpcio(daemon: Daemon, topic: str, *, deadlines: bool, certificate: Certificate | None) -> list[str]:
    return talk_sync(daemon.address, topic, deadlines=deadlines, credentials=trusted(certificate))


def talk_grpcio_aio(
    daemon: Daemon, topic: str, *, deadlines: bool, certificate: Certificate | None
) -> list[str]:
    credentials = trusted(certificate)
    return asyncio.run(talk_aio(daemon.address, topic, deadlines=deadlines, credentials=credentials))


def trusted(certificate: Certificate | None) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(certificate.path.read_bytes()) if certificate else None


LONG = {"grpc-go", "grpc-java"}
"""Clients that are slow to build or to start."""
CLIENTS = {"grpcio": talk_grpcio, "grpcio-aio": talk_grpcio_aio, "grpc-go": talk_go, "grpc-java": talk_java}


named = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CLIENTS]
)


@pytest.mark.parametrize("deadlines", [False, True], ids=["no-deadlines", "deadlines"])
@named
def test_a_plaintext_client_gets_every_response(plain_daemon: Daemon, name: str, deadlines: bool) -> None:
    topic = f"{name}-{deadlines}"
    lines = CLIENTS[name](plain_daemon, topic, deadlines=deadlines, certificate=None)
    check(lines, topic)


@named
def test_a_tls_client_gets_every_response(tls_daemon: Daemon, certificate: Certificate, name: str) -> None:
    lines = CLIENTS[name](tls_daemon, name, deadlines=True, certificate=certificate)
    check(lines, name)
