# ruff: noqa: RUF009 - every call in the classes below ends in dataclasses.field()
"""Options of a Kafka cluster, and those of kafka-pixy that have no effect."""

from dataclasses import dataclass

from pixy.config.options.table import (
    LONGEST_KAFKA_SECONDS,
    NO_KIND,
    boolean,
    choice,
    private_file,
    seconds,
    section,
    text,
    texts,
)


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`proxies.<cluster>.kafka`: a Kafka cluster."""

    seed_peers: tuple[str, ...] = texts(
        ("localhost:9092",), "Bootstrap brokers: host:port of some of the brokers."
    )
    version: str = text(
        "0.10.2.1",
        "No effect: brokers announce the versions that they support. Kafka 3.1 or newer is required.",
        effect=NO_KIND,
    )
    metadata_max_age: float = seconds(
        30.0,
        "How often topics and partitions added by others are looked for. Moved partitions are "
        "noticed at once.",
        above=0,
    )
    transaction_timeout: float = seconds(
        120.0,
        "How long publishing staged records may take; the brokers abort a longer publication. If "
        "a daemon dies while it publishes and is not restarted, consumers wait behind its records "
        "until then. At most the brokers' transaction.max.timeout.ms.",
        above=0,
        maximum=LONGEST_KAFKA_SECONDS,
    )
    tls: bool = boolean(False, "Connect with TLS.")
    ca_certificate_file: str = text("", "Trusted certificate authority, PEM.")
    client_certificate_file: str = text("", "Client certificate to present to the brokers, PEM.")
    client_key_file: str = private_file("Private key of that certificate, PEM.")
    insecure: bool = boolean(False, "Skip verification of the brokers' certificates.")


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """`proxies.<cluster>.net.sasl`: authentication at a Kafka cluster."""

    enable: bool = boolean(False, "Authenticate with SASL.")
    mechanism: str = choice(
        "PLAIN",
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        "Mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 with user and password, or OAUTHBEARER "
        "with a token.",
    )
    handshake: bool = boolean(False, "No effect: the handshake is always sent.", effect=NO_KIND)
    user: str = text("", "User name.")
    password: str = text("", "Password.", secret=True)
    token_path: str = private_file(
        "File with the token of OAUTHBEARER. It is read for every connection: renew the token by "
        "rewriting the file.",
    )


@dataclass(frozen=True, slots=True)
class NetConfig:
    """`proxies.<cluster>.net`: connections to a Kafka cluster."""

    dial_timeout: float = seconds(
        30.0, "How long connecting may take, TLS and authentication included.", above=0
    )
    read_timeout: float = seconds(
        30.0, "How long a broker may take to answer a request before the connection is closed.", above=0
    )
    write_timeout: float = seconds(
        30.0, "No effect: read_timeout counts from the start of a request.", above=0, effect=NO_KIND
    )
    sasl: SaslConfig = section(SaslConfig, SaslConfig, "Authentication.")


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """`proxies.<cluster>.zoo_keeper`: accepted for kafka-pixy's files, and ignored."""

    seed_peers: tuple[str, ...] = texts(("localhost:2181",), "Servers of the ensemble.")
    chroot: str = text("", "Path of Kafka's nodes.")
    session_timeout: float = seconds(15.0, "Lifetime of a session.", above=0)
