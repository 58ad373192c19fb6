"""Logins at a real server, by clients that send what they want to."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.access import MECHANISMS, make_credential, user_line
from pixy.api.kafka.codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
)
from pixy.config import ServedSaslConfig
from pixy.kafka_messages.generated.api_versions import ApiVersionsRequest
from pixy.kafka_messages.generated.metadata import MetadataRequest
from pixy.kafka_messages.generated.sasl_authenticate import SaslAuthenticateRequest
from pixy.kafka_messages.generated.sasl_handshake import SaslHandshakeRequest
from tests.access.test_scram import client_final
from tests.api.kafka.conftest import CONFIG
from tests.fakes.backend import FakeBackend
from tests.fakes.kafka_client import RawKafkaClient, kafka_client
from tests.fakes.kafka_server import ServedKafka, serve_kafka

pytestmark = pytest.mark.slow

METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 3, 17, 18, 36
ALL = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


def line(user: str, password: str) -> str:
    credentials = {each: make_credential(each, password, bytes(16), 4096) for each in MECHANISMS}
    return f"{user_line(user, credentials)}\n"


@pytest.fixture
async def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(line("alice", "secret"))
    return path


@pytest.fixture
async def guarded(users: Path) -> AsyncIterator[ServedKafka]:
    config = replace(CONFIG, sasl=ServedSaslConfig(str(users)))
    async with serve_kafka(FakeBackend(), config) as served:
        yield served


@pytest.fixture
def client(guarded: ServedKafka) -> RawKafkaClient:
    return guarded.client


async def shake(client: RawKafkaClient, mechanism: str, version: int = 1) -> None:
    answer = await client.call(HANDSHAKE, version, SaslHandshakeRequest(mechanism))
    assert (answer.error_code, answer.mechanisms) == (NONE, ALL)


async def step(client: RawKafkaClient, message: bytes, version: int = 2) -> Any:
    return await client.call(AUTHENTICATE, version, SaslAuthenticateRequest(message))


async def is_served(client: RawKafkaClient) -> bool:
    return bool((await client.call(METADATA, 12, MetadataRequest([]))).brokers)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_client_of_plain_is_served_after_its_login(client: RawKafkaClient, version: int) -> None:
    await client.call(API_VERSIONS, 3, ApiVersionsRequest("tests", "1"))
    await shake(client, "PLAIN")
    answer = await step(client, b"\0alice\0secret", version)
    assert (answer.error_code, answer.auth_bytes, answer.error_message) == (NONE, b"", None)
    assert await is_served(client)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_client_of_scram_is_served_after_its_login(client: RawKafkaClient, mechanism: str) -> None:
    await shake(client, mechanism)
    challenge = (await step(client, b"n,,n=alice,r=abc")).auth_bytes
    answer = await step(client, client_final(mechanism, "secret", bytes(challenge), "n=alice,r=abc"))
    assert answer.error_code == NONE
    assert bytes(answer.auth_bytes).startswith(b"v=")
    assert await is_served(client)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_tokens_without_heads_after_a_handshake_of_version_0(
    client: RawKafkaClient, mechanism: str
) -> None:
    async def token(message: bytes) -> bytes:
        client.writer.write(len(message).to_bytes(4, "big") + message)
        return await client.frame()

    await shake(client, mechanism, version=0)
    if mechanism == "PLAIN":
        assert await token(b"\0alice\0secret") == b""
    else:
        challenge = await token(b"n,,n=alice,r=abc")
        final = client_final(mechanism, "secret", challenge, "n=alice,r=abc")
        assert (await token(final)).startswith(b"v=")
    assert await is_served(client)


async def test_a_wrong_token_without_a_head_ends_the_connection(client: RawKafkaClient) -> None:
    await shake(client, "PLAIN", version=0)
    client.writer.write(b"\0\0\0\0")
    assert await client.ended()


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"\0alice\0Secret", "alice"),
        (b"\0carol\0secret", "no user of sasl.users_file"),
        (b"secret", "no user of sasl.users_file"),
    ],
)
async def test_wrong_credentials_are_answered_and_end_the_connection(
    client: RawKafkaClient, message: bytes, user: str
) -> None:
    with capture_logs() as logs:
        await shake(client, "PLAIN")
        answer = await step(client, message)
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "Authentication failed: the user or the password is wrong"
        assert await client.ended()
    (said,) = (each for each in logs if each["event"] == "logins have failed")
    assert said["user"] == user
    assert "secret" not in str(said).lower()


async def test_failed_logins_are_one_line_of_the_log_a_minute(users: Path) -> None:
    config = replace(CONFIG, sasl=ServedSaslConfig(str(users)))
    with capture_logs() as logs:
        async with serve_kafka(FakeBackend(), config) as served:
            for _ in range(3):
                async with kafka_client(served.address) as client:
                    await shake(client, "PLAIN")
                    await step(client, b"\0alice\0wrong")
            assert served.server.counters.logins_failed == 3
    said = [each for each in logs if each["event"] == "logins have failed"]
    assert [(each["user"], each["times"], each["clients"]) for each in said] == [
        ("alice", 1, "127.0.0.1 1"),
        ("alice", 2, "127.0.0.1 2"),
    ]


@pytest.mark.parametrize("key", [0, 1, 3, 8, 22, 60])
async def test_nothing_else_is_served_before_a_login(client: RawKafkaClient, key: int) -> None:
    await client.call(API_VERSIONS, 0, ApiVersionsRequest("", ""))
    await shake(client, "PLAIN")
    head = key.to_bytes(2, "big") + b"\0\x04" + bytes(4) + b"\0\0"
    client.writer.write((len(head) + 4).to_bytes(4, "big") + head + bytes(4))
    assert await client.ended()


async def test_unknown_versions_are_answered_before_a_login(client: RawKafkaClient) -> None:
    head = b"\0\x12\0\x63" + bytes(4) + b"\0\0"
    client.writer.write(len(head).to_bytes(4, "big") + head)
    assert (await client.frame())[4:6] == b"\0\x23"
    await shake(client, "PLAIN")


async def test_a_large_request_before_a_login_ends_the_connection_before_it_is_kept(
    client: RawKafkaClient,
) -> None:
    await shake(client, "PLAIN")
    client.writer.write((65_537).to_bytes(4, "big") + b"\0\x24\0\x02")
    assert await client.ended()


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\0\1\0\1"])
async def test_a_token_of_a_wrong_size_ends_the_connection(client: RawKafkaClient, size: bytes) -> None:
    await shake(client, "PLAIN", version=0)
    client.writer.write(size)
    assert await client.ended()


async def test_requests_behind_a_login_wait_for_it(client: RawKafkaClient) -> None:
    client.send(HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    client.send(AUTHENTICATE, 1, SaslAuthenticateRequest(b"\0alice\0secret"))
    client.send(METADATA, 4, MetadataRequest([]))
    await client.response(HANDSHAKE, 1)
    assert (await client.response(AUTHENTICATE, 1)).error_code == NONE
    assert (await client.response(METADATA, 4)).brokers


async def test_an_unknown_mechanism_is_answered_with_those_there_are(client: RawKafkaClient) -> None:
    answer = await client.call(HANDSHAKE, 1, SaslHandshakeRequest("GSSAPI"))
    assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED_SASL_MECHANISM, ALL)
    assert await client.ended()


async def test_steps_out_of_order_are_answered(client: RawKafkaClient) -> None:
    assert (await step(client, b"\0alice\0secret")).error_code == ILLEGAL_SASL_STATE
    await shake(client, "PLAIN")
    assert (await step(client, b"\0alice\0secret")).error_code == NONE
    assert (await step(client, b"\0alice\0secret")).error_code == ILLEGAL_SASL_STATE
    answer = await client.call(HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    assert answer.error_code == ILLEGAL_SASL_STATE
    assert await is_served(client)


async def test_a_server_without_users_says_so(fake: ServedKafka) -> None:
    answer = await fake.client.call(HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    assert (answer.error_code, answer.mechanisms) == (ILLEGAL_SASL_STATE, [])
    assert await is_served(fake.client)


async def test_a_client_that_does_not_log_in_is_closed(users: Path) -> None:
    grpc = replace(CONFIG.grpc, handshake_timeout=1.0)
    config = replace(CONFIG, sasl=ServedSaslConfig(str(users)), grpc=grpc)
    async with serve_kafka(FakeBackend(), config) as served:
        await served.client.call(API_VERSIONS, 0, ApiVersionsRequest("", ""))
        await shake(served.client, "PLAIN")
        assert await served.client.ended()
        assert served.server.limits_reached == ["grpc.handshake_timeout"]


async def test_clients_that_leave_in_their_login_leave_nothing(guarded: ServedKafka) -> None:
    for _ in range(20):
        async with kafka_client(guarded.address) as client:
            await shake(client, "PLAIN")
            client.send(AUTHENTICATE, 2, SaslAuthenticateRequest(b"\0alice\0wrong"))
            await client.writer.drain()
    async with asyncio.timeout(10):
        await shake(guarded.client, "PLAIN")
        assert (await step(guarded.client, b"\0alice\0secret")).error_code == NONE


async def test_users_of_a_changed_file_log_in(guarded: ServedKafka, users: Path) -> None:
    await asyncio.to_thread(users.write_text, line("bob", "other"))
    async with kafka_client(guarded.address) as client:
        await shake(client, "PLAIN")
        assert (await step(client, b"\0alice\0secret")).error_code == SASL_AUTHENTICATION_FAILED
    await shake(guarded.client, "PLAIN")
    assert (await step(guarded.client, b"\0bob\0other")).error_code == NONE
