"""What the Kafka backend is told: the sections `kafka`, `net`, `producer` and `consumer` of a cluster, as it needs them."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider

from pixy.config import KafkaConfig, ProxyConfig
from pixy.errors import ConfigError

__all__ = ["KafkaOptions", "Security", "TokenFile"]


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka publishes no types
    """A token of OAUTHBEARER that somebody else keeps fresh in a file, read for every connection.

    Road not taken: to fetch tokens from an endpoint. What renews them, with which credentials, differs from place to place, and
    agents that write a file are there already (Kubernetes projects a service account's token into one).
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """The token.

        Raises:
            OSError: the file cannot be read; the connection is not made.
        """
        return (await asyncio.to_thread(self._path.read_text)).strip()


@dataclass(frozen=True, slots=True)
class Security:
    """How connections are secured.

    Args:
        ssl_context: None: no TLS.
        mechanism: of SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; empty: no log-in.
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
        """Kafka's name for it."""
        kind = "PLAINTEXT" if self.ssl_context is None else "SSL"
        return f"SASL_{kind}" if self.mechanism else kind


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """One Kafka cluster. Times are seconds, sizes bytes.

    Args:
        seed_peers: `host:port` of brokers to ask first.
        client_id: what brokers log and count by.
        security: TLS and log-in.
        dial_timeout_s: for one attempt to connect, log-in included.
        request_timeout_s: for one request; the connection is closed then, because answers come in order.
        metadata_max_age_s: after so long the topics are asked for again without a reason.
        required_acks: -1: all replicas in sync; 1: the leader.
        delivery_timeout_s: how long a batch may take until it is answered, attempts and pauses together.
        retry_backoff_s: longest pause before another attempt; it begins with a hundredth and doubles.
        transaction_timeout_s: after so long the cluster aborts a publication that is not finished.
        buffer_bytes: record batches that may be held; further ones are refused.
        fetch_max_wait_s: how long a broker may hold a fetch that finds nothing.
        session_timeout_s: a member of a consumer group that its coordinator has not heard of for so long is put out.
        rebalance_timeout_s: how long a rebalance may wait for the acks of what is handed out.
        rebalance_delay_s: how long other topics of a member wait for further ones, so that they make one rebalance.
        group_backoff_s: pause before a member tries to reach its coordinator again.
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
            # What the accumulators hold, with room for what a batch adds to its records.
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
