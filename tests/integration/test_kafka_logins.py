"""Logins of Kafka's clients at a real daemon: kcat, librdkafka, aiokafka, Java's tools."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from tests.conftest import require
from tests.fakes.certificates import make_certificate
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config, wait_until_refused
from tests.integration.kafka_tools import kafka_java, run_tool

pytestmark = [pytest.mark.process, pytest.mark.slow]

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
USER, PASSWORD = "alice", "it's = a, secret ä"
LINES = [f"message {number}" for number in range(100)]
LISTENER = {
    "kafka_addr": "127.0.0.1:0",
    "grpc": {"handshake_timeout": "120s"},  # on a machine with much other work
    **proxy_config(storage={"group_initial_rebalance_delay": "0.1s"}),
}


def user_line(name: str, password: str) -> str:
    """The line that `pixy user` prints."""
    command = [sys.executable, "-m", "pixy", "user", name]
    return subprocess.run(command, input=f"{password}\n", capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def line() -> str:
    return user_line(USER, PASSWORD)


@pytest.fixture
def users(tmp_path: Path, line: str) -> Path:
    path = tmp_path / "users"
    path.touch(0o600)
    path.write_text(line)
    return path


@pytest.fixture
def daemon(make_daemon: MakeDaemon, users: Path) -> Iterator[Daemon]:
    with make_daemon({**LISTENER, "sasl": {"users_file": str(users)}}) as daemon:
        yield daemon


def options(daemon: Daemon, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    """Options of librdkafka."""
    return {
        "bootstrap.servers": daemon.addresses["kafka"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
    }


def kcat(found: dict[str, Any], *args: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    program = require("kcat", "apt-get install kcat")
    set_options = [word for name, value in found.items() for word in ("-X", f"{name}={value}")]
    return subprocess.run(
        [program, *set_options, *args], input=given, capture_output=True, text=True, timeout=60, check=False
    )


def log_in(found: dict[str, Any]) -> bool:
    """True if librdkafka logs in, False if it is told that it must not."""
    errors: list[KafkaError] = []
    client = AdminClient({**found, "error_cb": errors.append})
    answers: list[bool] = []

    def is_told() -> bool:
        with suppress(Exception):
            answers.append(bool(client.list_topics(timeout=1).brokers))
        client.poll(0)
        return bool(answers) or any(each.code() == KafkaError._AUTHENTICATION for each in errors)

    until_blocking(is_told, lambda: str(errors))
    return bool(answers)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_logs_in_and_is_refused_with_a_wrong_password(daemon: Daemon, mechanism: str) -> None:
    found = options(daemon, mechanism)
    done = kcat(found, "-P", "-t", "orders", "-p", "0", given="".join(f"{line}\n" for line in LINES))
    assert done.returncode == 0, done.stderr
    read = kcat(found, "-C", "-q", "-t", "orders", "-p", "0", "-o", "beginning", "-e")
    assert read.stdout.splitlines() == LINES, read.stderr
    refused = kcat(options(daemon, mechanism, "wrong"), "-L", "-m", "5")
    assert refused.returncode != 0
    assert "Authentication failed: the user or the password is wrong" in refused.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in_as_producer_and_group(daemon: Daemon, mechanism: str) -> None:
    found = options(daemon, mechanism)
    producer = Producer({**found, "enable.idempotence": True})
    for line in LINES:
        producer.produce("orders", line.encode(), partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer({**found, "group.id": "workers", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        read: list[str] = []

        def is_read() -> bool:
            read.extend(message.value().decode() for message in consumer.consume(100, 1.0))
            return len(read) >= len(LINES)

        until_blocking(is_read, daemon.log)
        assert read == LINES
    finally:
        consumer.close()
    assert not log_in(options(daemon, mechanism, "wrong"))


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_logs_in_and_is_refused_with_a_wrong_password(daemon: Daemon, mechanism: str) -> None:
    def found(password: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": daemon.addresses["kafka"],
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": password,
        }

    async with AIOKafkaProducer(**found(PASSWORD)) as producer:
        for line in LINES:
            await producer.send_and_wait("orders", line.encode(), partition=0)
    reader = AIOKafkaConsumer("orders", auto_offset_reset="earliest", **found(PASSWORD))
    async with reader:
        assert [(await reader.getone()).value.decode() for _ in LINES] == LINES
    refused = AIOKafkaProducer(**found("wrong"))
    with pytest.raises(AioKafkaError):
        await refused.start()
    await refused.stop()
    assert "logins have failed" in daemon.log()


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_tools_log_in(daemon: Daemon, mechanism: str, tmp_path: Path) -> None:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"

    def config(password: str) -> str:
        file = tmp_path / "client.properties"
        login = f'org.apache.kafka.common.security.{module} required username="{USER}" password="{password}";'
        escaped = login.encode("ascii", "backslashreplace").decode().replace("\\xe4", "\\u00e4")
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={escaped}\n"
        )
        return str(file)

    tool = "org.apache.kafka.tools.TopicCommand"
    found = ("--bootstrap-server", daemon.addresses["kafka"], "--command-config")
    run_tool(tool, *found, config(PASSWORD), "--create", "--topic", "orders", "--partitions", "2")
    assert run_tool(tool, *found, config(PASSWORD), "--list").split() == ["orders"]
    refused = subprocess.run(
        [*kafka_java(), tool, *found, config("wrong"), "--list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode != 0
    assert "Authentication failed: the user or the password is wrong" in refused.stdout + refused.stderr


def test_users_are_read_again(daemon: Daemon, users: Path, line: str) -> None:
    bob = {**options(daemon, "SCRAM-SHA-256", "other"), "sasl.username": "bob"}
    assert not log_in(bob)
    users.write_text(line + user_line("bob", "other"))
    daemon.signal(signal.SIGHUP)
    until_blocking(lambda: "users have changed and are used" in daemon.log(), daemon.log)
    assert log_in(bob)
    users.write_text("bob\n")
    daemon.signal(signal.SIGHUP)
    until_blocking(lambda: "the configuration has faults" in daemon.log(), daemon.log)
    assert log_in(bob)
    users.write_text(line)
    assert not log_in(bob)
    assert log_in(options(daemon, "PLAIN"))


def test_kcat_logs_in_over_tls(make_daemon: MakeDaemon, users: Path, tmp_path: Path) -> None:
    make_certificate(tmp_path, "one")
    tls = {"certificate_path": str(tmp_path / "one.pem"), "key_path": str(tmp_path / "one.key")}
    with make_daemon({**LISTENER, "sasl": {"users_file": str(users)}, "tls": tls}) as daemon:
        secure = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": tmp_path / "one.pem",
            "ssl.endpoint.identification.algorithm": "none",  # it is for localhost
        }
        for mechanism in MECHANISMS:
            done = kcat({**options(daemon, mechanism), **secure}, "-L")
            assert done.returncode == 0, done.stderr
        assert kcat({**options(daemon, "PLAIN", "wrong"), **secure}, "-L", "-m", "5").returncode != 0


def test_a_file_of_users_that_cannot_be_used_keeps_the_daemon_from_starting(
    make_daemon: MakeDaemon, users: Path
) -> None:
    users.write_text("alice secret\n")
    code, log = wait_until_refused(make_daemon({**LISTENER, "sasl": {"users_file": str(users)}}))
    assert code == 2
    assert f"pixy: sasl.users_file {users}: line 1: expected SCRAM-SHA-256$ITERATIONS:SALT" in log
    assert "secret" not in log
