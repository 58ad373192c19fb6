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
    "StagingConfig",
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

_LONGEST_SECONDS = 292_000_000 * 365 * 24 * 3600.0
"""Kafka's long options, a topic's `retention.ms` among them, are milliseconds in 63 bits."""
_LONGEST_KAFKA_SECONDS = 24 * 24 * 3600.0
"""Its other ones, and what requests to brokers say, are milliseconds in 31 bits."""


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
    maximum: float = _LONGEST_SECONDS,
    effect: tuple[str, ...] = EVERY_KIND,
) -> float:
    minimum = 0 if above is None else None
    option = Option(ValueType.SECONDS, doc, minimum=minimum, above=above, maximum=maximum, effect=effect)
    return _option(default, option)


def _boolean(default: bool, doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> bool:
    return _option(default, Option(ValueType.BOOLEAN, doc, effect=effect))


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
_LARGEST_BATCH_BYTES = 1 << 30  # a record batch states its length in 31 bits
_LARGEST_FILE_BYTES = (
    1 << 30
)  # Kafka's tools count a segment's bytes in 31 bits, and a start reads a journal file as a whole
_LARGEST_GRPC_BYTES = (1 << 31) - 1
_LARGEST_HTTP2_NUMBER = (1 << 31) - 1
_LARGEST_FRAME_BYTES = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """`proxies.<cluster>.producer`: from a message to a record batch."""

    channel_buffer_size: int = _integer(
        4096,
        "Messages that may wait in the producer's buffer. Once it is full, requests wait for room.",
        minimum=1,
    )
    buffer_bytes: int = _bytes(
        64 * _MIB,
        "Bytes that may wait in the producer's buffer. Of record batches that clients append as many may be under way,\n"
        "and as many wait; more are answered UNAVAILABLE.",
    )
    waiting_requests: int = _integer(
        65_536,
        "Requests that may wait for room in the buffer, with at most buffer_bytes of messages; as many may wait for\n"
        "topics to be created. More are answered UNAVAILABLE.",
        minimum=0,
    )
    max_message_bytes: int = _bytes(
        1_000_000,
        "Largest message: key, value and headers together; and the largest record batch that a client may append.\n"
        "A larger one is refused.",
        maximum=_LARGEST_BATCH_BYTES,
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
    flush_bytes: int = _bytes(
        _MIB, "Size at which a record batch is cut and sent.", minimum=0, maximum=_LARGEST_BATCH_BYTES
    )
    flush_frequency: float = _seconds(
        0.0,
        "How long a record batch gathers messages. With 0s a lone message goes out at once, and messages that come\n"
        "together gather while a batch of their partition is on its way, and for 2 ms at most otherwise. On a Kafka\n"
        "cluster linger_ms says so: files of kafka-pixy have 500ms here, by which every message would be late.",
        effect=("embedded",),
    )
    linger_ms: int = _integer(
        0,
        "The same on a Kafka cluster, in milliseconds, with Kafka's name for it.",
        maximum=60_000,
        effect=KAFKA_ONLY,
    )
    partitioner: str = _choice(
        "hash",
        ("hash", "murmur2", "random", "roundrobin"),
        "How a message's key chooses its partition: hash (FNV-1a, as kafka-pixy), murmur2 (as Kafka's Java producer),\n"
        "random or roundrobin. Messages without a key go to any partition; with hash and murmur2 those that come together\n"
        "go to the same one.",
    )
    shutdown_timeout: float = _seconds(
        30.0, "How long to wait at shutdown for what is buffered to be written."
    )
    required_acks: str = _choice(
        "wait_for_all",
        ("no_response", "wait_for_local", "wait_for_all"),
        "Whom a write waits for: wait_for_local (the leader) or wait_for_all (every replica in sync). no_response\n"
        "counts as wait_for_all; Produce with async_mode does not wait.",
        effect=KAFKA_ONLY,
    )
    retry_backoff: float = _seconds(
        10.0,
        "Longest pause before a failed write is tried again; the first ones are short, and none is above 1s.",
        effect=KAFKA_ONLY,
    )
    retry_max: int = _integer(6, "Without effect: timeout says how long a write is tried.", effect=NO_KIND)
    timeout: float = _seconds(
        10.0,
        "How long a message may take until it is answered, waiting and all attempts together.",
        above=0,
        effect=KAFKA_ONLY,
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
    fetch_max_bytes: int = _bytes(
        _MIB, "Bytes to read from a partition in one go.", maximum=_LARGEST_BATCH_BYTES
    )
    long_polling_timeout: float = _seconds(3.0, "How long a consume request waits for a message.", above=0)
    max_pending_messages: int = _integer(
        300,
        "Messages of one partition and consumer group that may be offered and not acknowledged.",
        minimum=1,
    )
    max_pending_bytes: int = _bytes(16 * _MIB, "Bytes of such messages.")
    max_groups: int = _integer(
        10_000,
        "Consumer groups of this cluster that the process takes part in at once. Requests for further ones are answered\n"
        "RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    max_subscriptions: int = _integer(
        20_000, "Topics that they consume, each counted once per consumer group.", minimum=1
    )
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
        0.25,
        "How long the brokers may hold a fetch that finds nothing.",
        maximum=_LONGEST_KAFKA_SECONDS,
        effect=KAFKA_ONLY,
    )
    retry_backoff: float = _seconds(
        0.5, "Pause before the coordinator of a consumer group is tried again.", effect=KAFKA_ONLY
    )
    rebalance_delay: float = _seconds(
        0.25,
        "How long other topics of this member of a consumer group wait for further ones: each change stops the whole\n"
        "group for a moment.",
        effect=KAFKA_ONLY,
    )
    rebalance_timeout: float = _seconds(
        10.0,
        "How long a rebalance waits for the acks of messages that are handed out; nothing else is handed out meanwhile.\n"
        "What is not acked by then may be handed out again, by another member.",
        maximum=_LONGEST_KAFKA_SECONDS,
        effect=KAFKA_ONLY,
    )
    session_timeout: float = _seconds(
        15.0,
        "A member of a consumer group that the brokers have not heard of for so long loses its partitions. They must\n"
        "allow it (group.min.session.timeout.ms, group.max.session.timeout.ms).",
        above=0,
        maximum=_LONGEST_KAFKA_SECONDS,
        effect=KAFKA_ONLY,
    )


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """`proxies.<cluster>.journal`: the write-ahead log of an embedded cluster."""

    file_bytes: int = _bytes(
        32 * _MIB,
        "Size of one journal file, at most 1 GiB: a start reads one at a time into memory.",
        minimum=_MIB,
        maximum=_LARGEST_FILE_BYTES,
    )
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
        "retention_ms comes first. By their timestamps, as in Kafka: older ones go soon after they came.",
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
        "Size at which a partition starts a new segment file, at most 1 GiB. A topic's own option segment_bytes comes\n"
        "first.",
        minimum=_MIB,
        maximum=_LARGEST_FILE_BYTES,
    )
    segment_age: float = _seconds(
        24 * 3600.0,
        "Age of its oldest record at which a partition starts a new segment file; records go in whole segments. A\n"
        "topic's own option segment_ms comes first.",
        above=0,
    )
    cold_read_bytes_per_second: int = _bytes(
        128 * _MIB,
        "What consumers may read from the disk in a second while messages are written: beyond it reads wait, so that\n"
        "writes need not. What is in memory does not count. 0: without bound.",
        minimum=0,
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
class StagingConfig:
    """`proxies.<cluster>.staging`: records that are written and not published yet, as Spark's sink does."""

    max_bytes: int = _bytes(
        10 * 1024 * _MIB,
        "Bytes that may be staged. More are answered RESOURCE_EXHAUSTED until some are published or dropped.",
    )
    expiry: float = _seconds(
        24 * 3600.0,
        "Stages of a sink that has done nothing for this time are dropped; a job that stages them is taken for dead.\n"
        "So are stages that their sink has passed by when it published, and nothing was added to since.\n"
        "Sinks that published once, without a query, are forgotten after it, or after an hour if that is less.",
        above=0,
    )
    sink_retention: float = _seconds(
        0.0,
        "How long the last epoch of a query's sink is remembered after it has published last. 0s: without end. A\n"
        "query that comes back later would publish its last batch again.",
        effect=("embedded",),
    )


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`proxies.<cluster>.kafka`: how to reach a Kafka cluster."""

    seed_peers: tuple[str, ...] = _texts(
        ("localhost:9092",), "Brokers to ask first: host:port of some of them."
    )
    version: str = _text(
        "0.10.2.1",
        "Without effect: the brokers say what they understand. Kafka 3.1 or newer is needed.",
        effect=NO_KIND,
    )
    metadata_max_age: float = _seconds(
        30.0,
        "How often it is looked whether topics or partitions were added by others. What was moved is noticed at once.",
        above=0,
    )
    transaction_timeout: float = _seconds(
        120.0,
        "How long publishing staged records may take: the brokers abort what is not finished then. Until then consumers\n"
        "wait behind the records of a daemon that died while it published and was not started again. At most\n"
        "transaction.max.timeout.ms of the brokers.",
        above=0,
        maximum=_LONGEST_KAFKA_SECONDS,
    )
    tls: bool = _boolean(False, "Connect with TLS.")
    ca_certificate_file: str = _text("", "Certificate authority to trust, PEM.")
    client_certificate_file: str = _text("", "Certificate to show to the brokers, PEM.")
    client_key_file: str = _text("", "Key of that certificate, PEM.")
    insecure: bool = _boolean(False, "Do not check the brokers' certificates.")


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """`proxies.<cluster>.net.sasl`: how to log in to a Kafka cluster."""

    enable: bool = _boolean(False, "Log in.")
    mechanism: str = _choice(
        "PLAIN",
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        "How: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 with user and password, or OAUTHBEARER with a token.",
    )
    handshake: bool = _boolean(False, "Without effect: the handshake is always sent.", effect=NO_KIND)
    user: str = _text("", "Name to log in with.")
    password: str = _text("", "Password to log in with.", secret=True)
    token_path: str = _text(
        "",
        "File that holds the token of OAUTHBEARER. It is read for every connection, so whoever renews the token writes\n"
        "it there.",
    )


@dataclass(frozen=True, slots=True)
class NetConfig:
    """`proxies.<cluster>.net`: connections to a Kafka cluster."""

    dial_timeout: float = _seconds(30.0, "How long connecting may take, with TLS and log-in.", above=0)
    read_timeout: float = _seconds(
        30.0, "How long a broker may take to answer a request. The connection is closed then.", above=0
    )
    write_timeout: float = _seconds(
        30.0, "Without effect: read_timeout counts from the beginning of a request.", above=0, effect=NO_KIND
    )
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
        "What the cluster is: embedded (pixy's own log, in data_dir) or kafka (an Apache Kafka cluster). An entry with a\n"
        "section `kafka` and without this option is kafka, as in kafka-pixy's files.",
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
    staging: StagingConfig = _section(
        StagingConfig, StagingConfig, "Records that are written and not published yet."
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
    client_ca_path: str = _text(
        "",
        "Certificate authority of clients, PEM. Clients must show a certificate of it. Empty: they need none.",
    )
    reload_interval: float = _seconds(
        10.0,
        "How often it is looked whether these files have changed. New connections get the new certificate, those that\n"
        "are open stay. 0s: never.",
    )


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """One entry of `logging`."""

    name: str = _choice("console", ("console", "json"), "console (for people) or json (one object a line).")
    severity: str = _choice(
        "info", ("debug", "info", "warning", "error"), "Least severity: debug, info, warning or error."
    )


@dataclass(frozen=True, slots=True)
class GrpcConfig:
    """`grpc`: the gRPC door. Each limit bounds what one client can cost the others."""

    max_message_bytes: int = _bytes(
        4 * _MIB,
        "Largest request, compressed or not. Must leave room for 65536 bytes beside the largest\n"
        "producer.max_message_bytes. A larger one is answered RESOURCE_EXHAUSTED.",
        maximum=_LARGEST_GRPC_BYTES,
    )
    max_connections: int = _integer(
        10_000,
        "Connections in all; one more is closed at once. An idle one takes about 12 KB. Fewer if the limit of open files does\n"
        "not allow as many beside the files of the clusters; the daemon says so.",
        minimum=1,
    )
    max_concurrent_streams: int = _integer(
        4096,
        "Calls that may run at once on a connection. Clients with thousands of long polls use one connection. More are\n"
        "refused, and safe to try again.",
        minimum=1,
        maximum=_LARGEST_HTTP2_NUMBER,
    )
    max_header_list_bytes: int = _bytes(
        16_384,
        "Largest header of a request, with 32 bytes more for each field. gRPC's own servers take 8 or 16 KiB.",
        minimum=1024,
        maximum=_MIB,
    )
    max_continuation_frames: int = _integer(
        16,
        "Frames that such a header may be cut into. One holds what is allowed, if it is full.",
        minimum=4,
    )
    max_frame_bytes: int = _bytes(
        48 * 1024,
        "Largest frame that is taken. At most stream_window_bytes. A body is passed on as it comes, whatever the frames;\n"
        "large ones in small frames cost a tenth more of a processor.",
        minimum=16_384,
        maximum=_LARGEST_FRAME_BYTES,
    )
    stream_window_bytes: int = _bytes(
        512 * 1024,
        "What a client may send on a call ahead of the reader. With it a usual message needs no further permission.",
        minimum=65_535,
        maximum=_LARGEST_HTTP2_NUMBER,
    )
    connection_window_bytes: int = _bytes(
        4 * _MIB,
        "The same for all calls of a connection together: memory that a connection can take with data nobody reads.",
        minimum=65_535,
        maximum=_LARGEST_HTTP2_NUMBER,
    )
    request_buffer_bytes: int = _bytes(
        16 * _MIB,
        "Bytes of requests of a connection that have begun and are not complete. Requests larger than stream_window_bytes\n"
        "wait until they fit in half of it. The one that exceeds it is answered RESOURCE_EXHAUSTED. Must be at least\n"
        "max_message_bytes.",
        maximum=_LARGEST_HTTP2_NUMBER,
    )
    output_buffer_bytes: int = _bytes(
        8 * _MIB,
        "Bytes of answers of a connection that wait, be it for the windows of its client or for a transport that the client\n"
        "does not read fast enough. Calls of which an answer would exceed it are cancelled (RST_STREAM), and their messages\n"
        "go to somebody else. Who has many calls with large answers running must read them as they come. Fetches of record\n"
        "batches wait for room in half of it. Must be at least max_message_bytes.",
        maximum=_LARGEST_HTTP2_NUMBER,
    )
    buffer_bytes: int = _bytes(
        256 * _MIB,
        "The same for all connections together: requests that are not complete, and answers that wait. Large requests are\n"
        "admitted as long as they fit in half of it, and wait otherwise. Beyond it the connections that hold most are ended.\n"
        "Must be at least request_buffer_bytes and output_buffer_bytes.",
    )
    turn_bytes: int = _bytes(
        16 * 1024,
        "Bytes of one connection that are served before the others have their turn: about a millisecond of work. Frames\n"
        "and headers that are dear for their size count as more.",
        minimum=1024,
        maximum=_MIB,
    )
    reset_burst: int = _integer(
        4096,
        "Calls that a client may cancel at once, besides one for every two answers. Beyond it the connection is closed\n"
        "(CVE-2023-44487). A client may give up everything that it has running.",
        minimum=1,
    )
    resets_per_second: int = _integer(100, "How fast that budget fills again.", minimum=1)
    ping_burst: int = _integer(
        100,
        "PINGs that a client may send at once, besides one for each answer (CVE-2019-9512). gRPC's clients ping every 10\n"
        "seconds, and in proportion to what they receive.",
        minimum=1,
    )
    pings_per_second: int = _integer(1, "How fast that budget fills again.", minimum=1)
    settings_burst: int = _integer(
        100, "Changes of its settings that a client may send at once (CVE-2019-9515).", minimum=1
    )
    settings_per_second: int = _integer(1, "How fast that budget fills again.", minimum=1)
    overhead_burst: int = _integer(
        10_000,
        "Frames that move no message (window updates, priorities, empty ones) that a client may send at once, besides\n"
        "four for each answer (CVE-2019-9518).",
        minimum=1,
    )
    overhead_per_second: int = _integer(1000, "How fast that budget fills again.", minimum=1)
    handshake_timeout: float = _seconds(
        10.0,
        "How long a client may take for the handshakes of TLS and HTTP/2, and for a header. 0s: any time.",
    )
    request_timeout: float = _seconds(
        120.0,
        "How long a client may take to complete a request, or a message on a stream. The call is answered\n"
        "DEADLINE_EXCEEDED then. Time in which a large request waits for room does not count. 0s: any time.",
    )
    keepalive: float = _seconds(
        60.0, "A connection on which nothing was received for so long is asked for a sign of life. 0s: never."
    )
    keepalive_timeout: float = _seconds(
        20.0, "How long the answer may take before the connection is closed.", above=0
    )
    idle_timeout: float = _seconds(
        0.0,
        "A connection without a call for so long is closed gracefully. 0s: never, clients keep theirs for long.",
    )
    stall_timeout: float = _seconds(
        300.0,
        "How long a client may read nothing of an answer, or let it out in crumbs of less than 128 bytes: the call is reset\n"
        "then, or the connection closed if it reads nothing at all (CVE-2019-9517). 0s: any time.",
    )
    linger_timeout: float = _seconds(
        5.0,
        "How long a client may take to read the last bytes of a connection that has ended, and to close it too. What it\n"
        "still sends meanwhile is thrown away, 1 MiB in a second.",
        above=0,
    )
    drain_ping_timeout: float = _seconds(
        1.0,
        "How long a connection that is closed gracefully waits to hear that the client knows, before it takes no new calls.",
        above=0,
    )
    max_connection_age: float = _seconds(
        0.0,
        "A connection that is older is closed gracefully, a tenth earlier or later, so that clients spread anew over the\n"
        "servers behind a name. 0s: never.",
    )
    max_connection_age_grace: float = _seconds(
        30.0, "How long calls of such a connection may still run.", above=0
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
