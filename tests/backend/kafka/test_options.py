"""Options of the Kafka backend, and access to brokers that require TLS or SASL, only with the right
credentials.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pixy.backend.kafka.options import KafkaOptions, TokenFile
from pixy.config import ConsumerConfig, KafkaConfig, ProducerConfig, ProxyConfig
from pixy.config.options import NetConfig, SaslConfig
from pixy.errors import ConfigError, Unavailable
from tests.judges.daemons import make_certificate
from tests.kafka.pixies import Pixy, open_pixy
from tests.kafka.secured import PASSWORD, USER, SecuredKafka, write_token


def test_every_option_of_a_cluster_comes_from_its_section() -> None:
    config = ProxyConfig(
        kind="kafka",
        producer=ProducerConfig(timeout=3.0, retry_backoff=0.5, required_acks="wait_for_local"),
        consumer=ConsumerConfig(
            session_timeout=7.0,
            rebalance_timeout=8.0,
            rebalance_delay=0.9,
            retry_backoff=0.1,
            fetch_max_wait=0.2,
        ),
        kafka=KafkaConfig(seed_peers=("a:1", "b:2"), metadata_max_age=5.0),
        net=NetConfig(dial_timeout=1.0, read_timeout=2.0),
    )
    options = KafkaOptions.from_config(config, "me")
    assert (options.seed_peers, options.client_id, options.security.protocol) == (
        ("a:1", "b:2"),
        "me",
        "PLAINTEXT",
    )
    assert (options.dial_timeout_s, options.request_timeout_s, options.metadata_max_age_s) == (1.0, 2.0, 5.0)
    assert (options.delivery_timeout_s, options.retry_backoff_s, options.required_acks) == (3.0, 0.5, 1)
    assert (options.session_timeout_s, options.rebalance_timeout_s, options.rebalance_delay_s) == (
        7.0,
        8.0,
        0.9,
    )
    assert (options.group_backoff_s, options.fetch_max_wait_s) == (0.1, 0.2)


def test_an_unreadable_certificate_prevents_the_start(tmp_path: Path) -> None:
    config = ProxyConfig(kafka=KafkaConfig(tls=True, ca_certificate_file=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match="certificates of the Kafka cluster cannot be used"):
        KafkaOptions.from_config(config, "me")


async def test_a_token_is_read_anew_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    provider = TokenFile(file)
    assert await provider.token() == "one"
    file.write_text("two")
    assert await provider.token() == "two"


# --- brokers that require credentials -------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    broker = SecuredKafka(tmp_path_factory.mktemp("secured"))
    try:
        asyncio.run(broker.start())
        yield broker
    finally:
        broker.cluster.kill()


def sasl(mechanism: str, **changed: Any) -> NetConfig:
    login = {"enable": True, "mechanism": mechanism, "user": USER, "password": PASSWORD, **changed}
    return NetConfig(dial_timeout=3.0, sasl=SaslConfig(**login))


def tls(broker: SecuredKafka, listener: str, **changed: Any) -> KafkaConfig:
    files = {"tls": True, "ca_certificate_file": str(broker.certificate.path), **changed}
    return KafkaConfig(seed_peers=(broker.addresses[listener],), **files)


async def use(broker: SecuredKafka, topic: str, **proxy: Any) -> None:
    """Produce, consume as a member of a group, and commit: every kind of connection."""
    async with open_pixy(broker.cluster, **proxy) as pixy:
        await pixy.backend.create_topic(topic, 1)
        await pixy.produce(topic, b"hello")
        offer = await pixy.consume_some(f"readers of {topic}", topic, auto_ack=True)
        assert offer.record.value == b"hello"
        await pixy.wait_committed(f"readers of {topic}", topic, {0: (1, "")})


@pytest.mark.process
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_user_authenticates_with_a_password(secured: SecuredKafka, mechanism: str) -> None:
    kafka = KafkaConfig(seed_peers=(secured.addresses["SASL_PLAINTEXT"],))
    await use(secured, f"login-{mechanism}", kafka=kafka, net=sasl(mechanism))


@pytest.mark.process
async def test_a_token_authenticates(secured: SecuredKafka, tmp_path: Path) -> None:
    kafka = KafkaConfig(seed_peers=(secured.addresses["SASL_PLAINTEXT"],))
    token = str(write_token(tmp_path / "token"))
    await use(secured, "login-token", kafka=kafka, net=sasl("OAUTHBEARER", token_path=token))


@pytest.mark.process
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_user_authenticates_over_tls(secured: SecuredKafka, mechanism: str) -> None:
    await use(secured, f"login-tls-{mechanism}", kafka=tls(secured, "SASL_SSL"), net=sasl(mechanism))


@pytest.mark.process
async def test_tls_checks_the_brokers_certificate(secured: SecuredKafka) -> None:
    await use(secured, "tls", kafka=tls(secured, "SSL"))


@pytest.mark.process
async def test_a_client_presents_its_certificate(secured: SecuredKafka) -> None:
    kafka = tls(
        secured,
        "MUTUAL",
        client_certificate_file=str(secured.certificate.path),
        client_key_file=str(secured.certificate.key_path),
    )
    await use(secured, "mutual", kafka=kafka)


@pytest.mark.process
async def test_an_unknown_certificate_is_accepted_if_configured(secured: SecuredKafka) -> None:
    await use(secured, "insecure", kafka=tls(secured, "SSL", ca_certificate_file="", insecure=True))


@pytest.fixture
async def stranger(
    secured: SecuredKafka, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Pixy]:
    """A pixy that the broker rejects."""
    kafka, net = request.param(secured, tmp_path)
    async with open_pixy(secured.cluster, kafka=kafka, net=net) as pixy:
        yield pixy


@pytest.mark.process
@pytest.mark.parametrize(
    ("stranger", "reason"),
    [
        pytest.param(
            lambda kafka, _: (tls(kafka, "SASL_SSL"), sasl("PLAIN", password="wrong")),
            "Invalid username or password",
            id="password",
        ),
        pytest.param(
            lambda kafka, _: (tls(kafka, "SASL_SSL"), sasl("SCRAM-SHA-256", user="nobody")),
            "invalid credentials",
            id="user",
        ),
        pytest.param(
            lambda kafka, path: (tls(kafka, "SASL_SSL"), sasl("OAUTHBEARER", token_path=str(path / "none"))),
            "No such file",
            id="token",
        ),
        pytest.param(
            lambda kafka, path: (
                tls(kafka, "SSL", ca_certificate_file=str(make_certificate(path).path)),
                NetConfig(),
            ),
            "certificate verify failed",
            id="authority",
        ),
    ],
    indirect=["stranger"],
)
async def test_a_rejected_client_gets_the_reason(stranger: Pixy, reason: str) -> None:
    assert reason in stranger.backend.fault
    with pytest.raises(Unavailable, match=reason):
        await stranger.produce("t", b"x")
