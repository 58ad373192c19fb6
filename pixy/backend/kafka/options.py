"""Options of the Kafka backend, from the sections `kafka`, `net`, `producer` and `consumer` of a
cluster.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider

from pixy.config import KafkaConfig, ProxyConfig
from pixy.errors import ConfigError


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka publishes no types
    """An OAUTHBEARER token in a file, read for every connection; an external agent renews it.

    Road not taken: fetching tokens from an endpoint. Renewal and its credentials differ from site
    to site, and agents that write a file exist already (Kubernetes projects a service account's
    token into one).
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """The token.

        Raises:
            OSError: the file cannot be read; the connection fails.
        """
        return (await asyncio.to_thread(self._path.read_text)).strip()


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and SASL of connections.

    Args:
        ssl_context: None: no TLS.
        mechanism: SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; empty: none.
        user, password: for PLAIN and SCRAM.
        token_provider: for OAUTHBEARER.
    """

    ssl_context: ssl.SSLContext | None = None
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token_provider: AbstractTokenProvider | None = None

    @property
    def protocol(self) -> str:
        """The security protocol, as Kafka names it."""
        kind = "PLAINTEXT" if self.ssl_context is None else "SSL"
        return f"SASL_{kind}" if self.mechanism else kind


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """One Kafka cluster. Times are seconds, sizes bytes.

    Args:
        seed_peers: `host:port` of bootstrap brokers.
        client_id: the name of this process in brokers' logs and metrics.
        security: TLS and SASL.
        dial_timeout_s: time limit of one attempt to connect, authentication included.
        request_timeout_s: time limit of one request; the connection is closed then, because
            responses come in order.
        metadata_max_age_s: interval of metadata refreshes.
        required_acks: -1: all in-sync replicas; 1: the leader.
        delivery_timeout_s: time limit of a batch, attempts and pauses together.
        retry_backoff_s: longest pause between attempts; the first is a hundredth, and it doubles.
        transaction_timeout_s: time limit of a publication, after which the cluster aborts it.
        buffer_bytes: limit of buffered record batches; further ones are refused.
        fetch_max_wait_s: time that a broker may hold a fetch without data.
        session_timeout_s: time without a heartbeat after which the coordinator removes a member.
        rebalance_timeout_s: time that a rebalance waits for acks of outstanding offers.
        rebalance_delay_s: time that a change of topics waits for further ones, to share one
            rebalance.
        group_backoff_s: pause before a member retries to reach its coordinator.
    """

    seed_peers: tuple[str, ...]
    client_id: str
    security: Security = Security()
    dial_timeout_s: float = 30.0
    request_timeout_s: float = 30.0
    metadata_max_age_s: float = 30.0
    required_acks: int = -1
    delivery_timeout_s: float = 10.0
    retry_backoff_s: float = 1.0
    transaction_timeout_s: float = 120.0
    buffer_bytes: int = 64 << 20
    fetch_max_wait_s: float = 0.25
    session_timeout_s: float = 15.0
    rebalance_timeout_s: float = 10.0
    rebalance_delay_s: float = 0.25
    group_backoff_s: float = 0.5

    @classmethod
    def from_config(cls, config: ProxyConfig, client_id: str) -> "KafkaOptions":
        """The options of a cluster.

        Raises:
            ConfigError: a certificate or key cannot be used.
        """
        producer, consumer, net = config.producer, config.consumer, config.net
        sasl = net.sasl
        return cls(
            seed_peers=config.kafka.seed_peers,
            client_id=client_id,
            security=Security(
                ssl_context=_ssl_context(config.kafka) if config.kafka.tls else None,
                mechanism=sasl.mechanism if sasl.enable else "",
                user=sasl.user,
                password=sasl.password,
                token_provider=TokenFile(Path(sasl.token_path)) if sasl.token_path else None,
            ),
            dial_timeout_s=net.dial_timeout,
            request_timeout_s=net.read_timeout,
            metadata_max_age_s=config.kafka.metadata_max_age,
            required_acks=1 if producer.required_acks == "wait_for_local" else -1,
            delivery_timeout_s=producer.timeout,
            transaction_timeout_s=config.kafka.transaction_timeout,
            retry_backoff_s=min(producer.retry_backoff, 1.0),
            # The accumulators' limit, with room for the overhead of batches.
            buffer_bytes=2 * producer.buffer_bytes,
            fetch_max_wait_s=consumer.fetch_max_wait,
            session_timeout_s=consumer.session_timeout,
            rebalance_timeout_s=consumer.rebalance_timeout,
            rebalance_delay_s=consumer.rebalance_delay,
            group_backoff_s=consumer.retry_backoff,
        )


def _ssl_context(kafka: KafkaConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=kafka.ca_certificate_file or None)
        if kafka.client_certificate_file:
            context.load_cert_chain(kafka.client_certificate_file, kafka.client_key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates of the Kafka cluster cannot be used: {error}") from error
    if kafka.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
