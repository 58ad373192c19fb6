# ruff: noqa: RUF009 - every call in the classes below ends in dataclasses.field()
"""The one table of options: name, type, default, bounds, comment, and where an option has an effect.

Each class is a section of the file and each field an option or a section inside it; what a field carries as metadata is
all that the rest of this package knows of it. Parsing, bounds, `config.yaml`, the names of the environment variables and
`pixy config print` all follow from this table, so an option is added here and nowhere else.

Durations are seconds as float, sizes are bytes as int. All values are immutable.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "Config",
    "ConsumerConfig",
    "GrpcConfig",
    "JournalConfig",
    "KafkaConfig",
    "Leaf",
    "LoggingConfig",
    "NetConfig",
    "Option",
    "ProducerConfig",
    "ProxyConfig",
    "SaslConfig",
    "Section",
    "StorageConfig",
    "TlsConfig",
    "ValueType",
    "ZooKeeperConfig",
    "leaves",
    "members",
    "values_of",
]

V = TypeVar("V")

EVERY_KIND = ("embedded", "kafka")
KAFKA_ONLY = ("kafka",)
NO_KIND: tuple[str, ...] = ()


class ValueType(Enum):
    """How an option is written; the value is what an error calls it."""

    INTEGER = "a whole number"
    BOOLEAN = "true or false"
    TEXT = "a text"
    TEXTS = "a list of texts"
    SECONDS = "a duration such as 500ms, 5m or 1h30m"
    BYTES = "a number of bytes such as 1048576 or 64MiB"
    CHOICE = "one of the allowed words"


@dataclass(frozen=True, slots=True)
class Option:
    """What the table says of one option.

    Args:
        type: how it is written.
        doc: its comment in config.yaml.
        minimum: smallest value that is allowed.
        above: the value must be greater than this.
        maximum: largest value that is allowed.
        choices: the allowed words of a CHOICE.
        effect: the kinds of cluster on which it has an effect; empty: on none in this release.
        secret: never printed, and may be read from a file named by the variable `<name>_FILE`.
    """

    type: ValueType
    doc: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    effect: tuple[str, ...] = EVERY_KIND
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """What the table says of a section.

    Args:
        table: the class that holds its options.
        doc: its comment in config.yaml.
        form: one section, a map from a name to such sections, or a list of them.
        effect: as in `Option`, for everything inside.
    """

    table: "type[DataclassInstance]"
    doc: str
    form: Literal["one", "map", "list"] = "one"
    effect: tuple[str, ...] = EVERY_KIND


class Leaf(NamedTuple):
    """An option, its dotted path below the table that was asked, and the kinds of cluster on which it has an effect."""

    path: str
    option: Option
    effect: tuple[str, ...]


def members(table: "type[DataclassInstance]") -> dict[str, Option | Section]:
    """The options and sections of a table by name, in its order."""
    return {f.name: f.metadata["pixy"] for f in fields(table) if "pixy" in f.metadata}


def leaves(table: "type[DataclassInstance]") -> Iterator[Leaf]:
    """Every option below a table that has a path of its own, so none inside maps and lists."""
    for name, member in members(table).items():
        if isinstance(member, Option):
            yield Leaf(name, member, member.effect)
        elif member.form == "one":
            for leaf in leaves(member.table):
                effect = tuple(kind for kind in leaf.effect if kind in member.effect)
                yield Leaf(f"{name}.{leaf.path}", leaf.option, effect)


def _option(default: V, option: Option) -> V:
    return field(default=default, metadata={"pixy": option})


def _integer(
    default: int,
    doc: str,
    *,
    minimum: int = 0,
    maximum: int | None = None,
    effect: tuple[str, ...] = EVERY_KIND,
) -> int:
    return _option(default, Option(ValueType.INTEGER, doc, minimum=minimum, maximum=maximum, effect=effect))


def _bytes(default: int, doc: str, *, minimum: int = 1, maximum: int | None = None) -> int:
    return _option(default, Option(ValueType.BYTES, doc, minimum=minimum, maximum=maximum))


def _seconds(
    default: float,
    doc: str,
    *,
    above: float | None = None,
    effect: tuple[str, ...] = EVERY_KIND,
) -> float:
    minimum = 0 if above is None else None
    return _option(default, Option(ValueType.SECONDS, doc, minimum=minimum, above=above, effect=effect))


def _boolean(default: bool, doc: str) -> bool:
    return _option(default, Option(ValueType.BOOLEAN, doc))


def _text(default: str, doc: str, *, effect: tuple[str, ...] = EVERY_KIND, secret: bool = False) -> str:
    return _option(default, Option(ValueType.TEXT, doc, effect=effect, secret=secret))


def _texts(default: tuple[str, ...], doc: str) -> tuple[str, ...]:
    return _option(default, Option(ValueType.TEXTS, doc))


def _choice(default: str, choices: tuple[str, ...], doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> str:
    return _option(default, Option(ValueType.CHOICE, doc, choices=choices, effect=effect))


def _section(
    table: "type[DataclassInstance]",
    factory: Callable[[], V],
    doc: str,
    *,
    form: Literal["one", "map", "list"] = "one",
    effect: tuple[str, ...] = EVERY_KIND,
) -> V:
    return field(default_factory=factory, metadata={"pixy": Section(table, doc, form=form, effect=effect)})


_MIB = 1 << 20
_LARGEST_MESSAGE_BYTES = 1 << 30  # a record batch states its length in 31 bits
_LARGEST_GRPC_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """`proxies.<cluster>.producer`: from a message to a record batch."""

    channel_buffer_size: int = _integer(
        4096,
        "Messages that may wait in the producer's buffer. Once it is full, requests wait for room.",
        minimum=1,
    )
    buffer_bytes: int = _bytes(64 * _MIB, "Bytes that may wait in the producer's buffer.")
    waiting_requests: int = _integer(
        65_536,
        "Requests that may wait for room in the buffer, with at most buffer_bytes of messages; as many may wait for\n"
        "topics to be created. More are answered UNAVAILABLE.",
        minimum=0,
    )
    max_message_bytes: int = _bytes(
        1_000_000,
        "Largest message: key, value and headers together. A larger one is refused.",
        maximum=_LARGEST_MESSAGE_BYTES,
    )
    max_headers: int = _integer(1024, "Most headers that one message may have.")
    max_header_bytes: int = _bytes(
        262_144, "Most bytes that the headers of one message may have, names and values.", minimum=0
    )
    compression: str = _choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "How record batches are compressed: none, gzip, snappy, lz4 or zstd.",
    )
    flush_bytes: int = _bytes(_MIB, "Size at which a record batch is cut and sent.", minimum=0)
    flush_frequency: float = _seconds(
        0.0,
        "How long a record batch gathers messages. With 0s a lone message goes out at once, and messages that come\n"
        "together gather while a batch of their partition is on its way, and for 2 ms at most otherwise.",
    )
    partitioner: str = _choice(
        "hash",
        ("hash", "murmur2", "random", "roundrobin"),
        "How a message's key chooses its partition: hash (FNV-1a, as kafka-pixy), murmur2 (as Kafka's Java producer),\n"
        "random or roundrobin. Messages without a key go to any partition.",
    )
    shutdown_timeout: float = _seconds(
        30.0, "How long to wait at shutdown for what is buffered to be written."
    )
    required_acks: str = _choice(
        "wait_for_all",
        ("no_response", "wait_for_local", "wait_for_all"),
        "Whom a write waits for: no_response, wait_for_local (the leader) or wait_for_all.",
        effect=KAFKA_ONLY,
    )
    retry_backoff: float = _seconds(10.0, "Pause before a failed write is tried again.", effect=KAFKA_ONLY)
    retry_max: int = _integer(6, "How often a failed write is tried again.", effect=KAFKA_ONLY)
    timeout: float = _seconds(
        10.0, "How long the brokers may take to acknowledge a write.", above=0, effect=KAFKA_ONLY
    )


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """`proxies.<cluster>.consumer`: who gets which message, and when again."""

    disabled: bool = _boolean(False, "Refuse to consume: requests are answered UNAVAILABLE.")
    ack_timeout: float = _seconds(
        300.0,
        "A message that is not acknowledged within this time is offered again, perhaps to another client.",
        above=0,
    )
    channel_buffer_size: int = _integer(
        16384,
        "Consume requests of one consumer group and topic that may wait. Further ones are answered\n"
        "RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    fetch_max_bytes: int = _bytes(_MIB, "Bytes to read from a partition in one go.")
    long_polling_timeout: float = _seconds(3.0, "How long a consume request waits for a message.", above=0)
    max_pending_messages: int = _integer(
        300,
        "Messages of one partition and consumer group that may be offered and not acknowledged.",
        minimum=1,
    )
    max_pending_bytes: int = _bytes(16 * _MIB, "Bytes of such messages.")
    max_retries: int = _integer(
        -1,
        "How often a message is offered again before it is dropped with a log line; -1: without end.",
        minimum=-1,
    )
    offsets_commit_interval: float = _seconds(
        0.5, "How often the offsets of consumer groups are committed.", above=0
    )
    subscription_timeout: float = _seconds(
        15.0, "A topic that nobody asked for during this time is given up by the consumer group.", above=0
    )
    initial_offset: str = _choice(
        "oldest",
        ("oldest", "newest"),
        "Where a consumer group starts that has committed nothing: oldest or newest.",
    )
    fetch_max_wait: float = _seconds(
        0.25, "How long the brokers may hold a fetch that finds nothing.", effect=KAFKA_ONLY
    )
    retry_backoff: float = _seconds(0.5, "Pause before a failed fetch is tried again.", effect=KAFKA_ONLY)
    rebalance_delay: float = _seconds(
        0.25, "How long a change of membership waits for further ones.", effect=KAFKA_ONLY
    )


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """`proxies.<cluster>.journal`: the write-ahead log of an embedded cluster."""

    file_bytes: int = _bytes(32 * _MIB, "Size of one journal file.", minimum=_MIB)
    max_unapplied_bytes: int = _bytes(
        64 * _MIB,
        "Bytes that may be in the journal and not yet safe in the partition logs. Bounds the time of recovery.",
        minimum=_MIB,
    )


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """`proxies.<cluster>.storage`: the partition logs and checkpoints of an embedded cluster."""

    retention: float = _seconds(
        7 * 24 * 3600.0,
        "How long records are kept, whether they were consumed or not. 0s: without end. A topic's own option\n"
        "retention_ms comes first.",
    )
    retention_bytes: int = _bytes(
        0,
        "Bytes that a partition keeps: beyond them its oldest segments go. 0: without bound. A topic's own option\n"
        "retention_bytes comes first.",
        minimum=0,
    )
    retention_check: float = _seconds(
        60.0, "How often it is looked whether records or committed offsets are to go.", above=0
    )
    offsets_retention: float = _seconds(
        7 * 24 * 3600.0,
        "How long the committed offsets of a consumer group are kept that nobody consumes in. 0s: without end.",
    )
    segment_bytes: int = _bytes(
        256 * _MIB,
        "Size at which a partition starts a new segment file. A topic's own option segment_bytes comes first.",
        minimum=_MIB,
    )
    segment_age: float = _seconds(
        24 * 3600.0,
        "Age of its oldest record at which a partition starts a new segment file; records go in whole segments. A\n"
        "topic's own option segment_ms comes first.",
        above=0,
    )
    reserve_bytes: int = _bytes(
        128 * _MIB,
        "Space on the disk that is set aside. When the disk is full, it is freed for offset commits and for what makes\n"
        "room, and no messages are taken until it can be set aside again. 0: nothing is set aside.",
        minimum=0,
    )
    tail_cache_bytes: int = _bytes(
        16 * _MIB, "Memory for the newest record batches of the partitions.", minimum=0
    )
    checkpoint_entries: int = _integer(
        10_000, "Changes of the cluster's state after which a checkpoint is written.", minimum=1
    )
    checkpoint_bytes: int = _bytes(16 * _MIB, "Bytes of such changes after which a checkpoint is written.")


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`proxies.<cluster>.kafka`: how to reach a Kafka cluster."""

    seed_peers: tuple[str, ...] = _texts(("localhost:9092",), "Brokers to ask first.")
    version: str = _text("0.10.2.1", "Version of Kafka that kafka-pixy was told of.")
    tls: bool = _boolean(False, "Connect with TLS.")
    ca_certificate_file: str = _text("", "Certificate authority to trust, PEM.")
    client_certificate_file: str = _text("", "Certificate to show to the brokers, PEM.")
    client_key_file: str = _text("", "Key of that certificate, PEM.")
    insecure: bool = _boolean(False, "Do not check the brokers' certificates.")


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """`proxies.<cluster>.net.sasl`: how to log in to a Kafka cluster."""

    enable: bool = _boolean(False, "Log in with user and password.")
    handshake: bool = _boolean(False, "Send the SASL handshake first.")
    user: str = _text("", "Name to log in with.")
    password: str = _text("", "Password to log in with.", secret=True)


@dataclass(frozen=True, slots=True)
class NetConfig:
    """`proxies.<cluster>.net`: connections to a Kafka cluster."""

    dial_timeout: float = _seconds(30.0, "How long connecting may take.", above=0)
    read_timeout: float = _seconds(30.0, "How long reading may take.", above=0)
    write_timeout: float = _seconds(30.0, "How long writing may take.", above=0)
    sasl: SaslConfig = _section(SaslConfig, SaslConfig, "Log-in.")


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """`proxies.<cluster>.zoo_keeper`: known so that kafka-pixy's files can be read, and ignored."""

    seed_peers: tuple[str, ...] = _texts(("localhost:2181",), "Servers of the ensemble.")
    chroot: str = _text("", "Path under which Kafka keeps its nodes.")
    session_timeout: float = _seconds(15.0, "Lifetime of a session.", above=0)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`proxies.<cluster>`: one cluster behind the doors."""

    kind: str = _choice(
        "embedded",
        ("embedded", "kafka"),
        "What the cluster is: embedded (pixy's own log, in data_dir) or kafka (an Apache Kafka cluster; not part of\n"
        "this release). An entry with a section `kafka` and without this option is kafka, as in kafka-pixy's files.",
    )
    client_id: str = _text("", "Name of this process in consumer groups. Empty: pixy_<host>_<process id>.")
    auto_create_topics: bool = _boolean(
        True, "Create a topic when somebody first produces to it or consumes from it."
    )
    default_partitions: int = _integer(
        4, "Partitions of a topic that is created so.", minimum=1, maximum=10_000
    )
    producer: ProducerConfig = _section(ProducerConfig, ProducerConfig, "Writing.")
    consumer: ConsumerConfig = _section(
        ConsumerConfig, ConsumerConfig, "Reading on behalf of consumer groups."
    )
    journal: JournalConfig = _section(
        JournalConfig, JournalConfig, "The write-ahead log of an embedded cluster.", effect=("embedded",)
    )
    storage: StorageConfig = _section(
        StorageConfig, StorageConfig, "The files of an embedded cluster.", effect=("embedded",)
    )
    kafka: KafkaConfig = _section(
        KafkaConfig, KafkaConfig, "The Kafka cluster to connect to.", effect=KAFKA_ONLY
    )
    net: NetConfig = _section(NetConfig, NetConfig, "Connections to it.", effect=KAFKA_ONLY)
    zoo_keeper: ZooKeeperConfig = _section(
        ZooKeeperConfig, ZooKeeperConfig, "Ignored: pixy needs no ZooKeeper.", effect=NO_KIND
    )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`tls`: the certificate of the doors."""

    certificate_path: str = _text("", "Certificate chain of the daemon, PEM. Empty: no TLS.")
    key_path: str = _text("", "Private key of that certificate, PEM.")


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """One entry of `logging`."""

    name: str = _choice("console", ("console", "json"), "console (for people) or json (one object a line).")
    severity: str = _choice(
        "info", ("debug", "info", "warning", "error"), "Least severity: debug, info, warning or error."
    )


@dataclass(frozen=True, slots=True)
class GrpcConfig:
    """`grpc`: the gRPC door."""

    max_message_bytes: int = _bytes(
        4 * _MIB,
        "Largest request. Must leave room for 65536 bytes beside the largest producer.max_message_bytes.",
        maximum=_LARGEST_GRPC_BYTES,
    )


def _one_default_proxy() -> Mapping[str, ProxyConfig]:
    return MappingProxyType({"default": ProxyConfig()})


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a daemon."""

    grpc_addr: str = _text(
        "127.0.0.1:19091",
        "Address and port of the gRPC API, or the path of a unix socket. Port 0 takes a free one; empty: unix_addr only.\n"
        "Only this machine can reach 127.0.0.1; for others set an address of this machine, and TLS.",
    )
    unix_addr: str = _text("", "Path of a unix socket on which gRPC is served too. Empty: none.")
    tcp_addr: str = _text(
        "", "Address and port of kafka-pixy's HTTP API, which this release does not have.", effect=NO_KIND
    )
    data_dir: str = _text(
        "./pixy-data", "Folder of the embedded clusters; each has a folder of its name inside."
    )
    default_cluster: str = _text(
        "", "Cluster of requests that name none. Empty: the first one under proxies."
    )
    shutdown_timeout: float = _seconds(30.0, "How long a shutdown may take before it is cut short.")
    tls: TlsConfig = _section(TlsConfig, TlsConfig, "TLS of the gRPC API, on TCP.")
    logging: tuple[LoggingConfig, ...] = _section(
        LoggingConfig, lambda: (LoggingConfig(),), "What is logged to standard error, and how.", form="list"
    )
    grpc: GrpcConfig = _section(GrpcConfig, GrpcConfig, "Limits of the gRPC API.")
    proxies: Mapping[str, ProxyConfig] = _section(
        ProxyConfig,
        _one_default_proxy,
        "The clusters by name; letters, digits, dot, dash and underscore.",
        form="map",
    )
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What an operator should know; for the daemon to log."""

    @property
    def effective_default_cluster(self) -> str:
        """The cluster of requests that name none."""
        return self.default_cluster or next(iter(self.proxies))


def values_of(section: Any) -> dict[str, Any]:
    """The values of a section by name; of options and sections only, in the table's order."""
    return {name: getattr(section, name) for name in members(type(section))}
