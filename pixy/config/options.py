# ruff: noqa: RUF009 - every call in the classes below ends in dataclasses.field()
"""The table of options: name, type, default, bounds, comment, and the kinds of cluster they affect.

Each class is a section of the file; each field is an option or a subsection. The rest of this
package works on the fields' metadata alone. Parsing, bounds, `config.yaml`, the names of the
environment variables and `pixy config print` all follow from this table, so an option is added here
and nowhere else.

Durations are seconds as float, sizes are bytes as int. All values are immutable.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "AdvertisedConfig",
    "ClusterConfig",
    "Config",
    "ConsumerConfig",
    "GrpcConfig",
    "JournalConfig",
    "KafkaConfig",
    "Leaf",
    "LimitsConfig",
    "LoggingConfig",
    "NetConfig",
    "Option",
    "PeerTlsConfig",
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
EMBEDDED_ONLY = ("embedded",)
KAFKA_ONLY = ("kafka",)
NO_KIND: tuple[str, ...] = ()

_LONGEST_SECONDS = 292_000_000 * 365 * 24 * 3600.0
"""Kafka's long options, a topic's `retention.ms` among them, are milliseconds in 63 bits."""
_LONGEST_KAFKA_SECONDS = 24 * 24 * 3600.0
"""Kafka's other options, and durations in requests to brokers, are milliseconds in 31 bits."""

_LARGEST_COUNT = (1 << 31) - 1
_LARGEST_BYTES = 1 << 50
"""More than any machine has: a number beyond these is a slip of the pen, and no limit at all."""


class ValueType(Enum):
    """Type of an option; the value describes it in error texts."""

    INTEGER = "a whole number"
    BOOLEAN = "true or false"
    TEXT = "a text"
    TEXTS = "a list of texts"
    SECONDS = "a duration such as 500ms, 5m or 1h30m"
    BYTES = "a number of bytes such as 1048576 or 64MiB"
    CHOICE = "one of the allowed words"


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of one option.

    Args:
        type: type of its value.
        doc: its comment in config.yaml.
        minimum: smallest allowed value.
        above: exclusive lower bound.
        maximum: largest allowed value.
        choices: the allowed words of a CHOICE.
        effect: kinds of cluster that it affects; empty: none in this release.
        secret: never printed, and may be read from a file named by the variable `<name>_FILE`.
        private_file: path of a file that other users of the machine must not read.
    """

    type: ValueType
    doc: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    effect: tuple[str, ...] = EVERY_KIND
    secret: bool = False
    private_file: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Metadata of a section.

    Args:
        table: class of its options.
        doc: its comment in config.yaml.
        form: a single section, a map from names to sections, or a list of sections.
        effect: as in `Option`, for all its options.
    """

    table: "type[DataclassInstance]"
    doc: str
    form: Literal["one", "map", "list"] = "one"
    effect: tuple[str, ...] = EVERY_KIND


class Leaf(NamedTuple):
    """An option, its dotted path below the table, and the kinds of cluster that it affects."""

    path: str
    option: Option
    effect: tuple[str, ...]


def members(table: "type[DataclassInstance]") -> dict[str, Option | Section]:
    """Options and sections of a table by name, in table order."""
    return {f.name: f.metadata["pixy"] for f in fields(table) if "pixy" in f.metadata}


def leaves(table: "type[DataclassInstance]") -> Iterator[Leaf]:
    """All options below a table that have a path of their own: none inside maps and lists."""
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
    maximum: int = _LARGEST_COUNT,
    effect: tuple[str, ...] = EVERY_KIND,
) -> int:
    return _option(default, Option(ValueType.INTEGER, doc, minimum=minimum, maximum=maximum, effect=effect))


def _bytes(default: int, doc: str, *, minimum: int = 1, maximum: int = _LARGEST_BYTES) -> int:
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


def _private_file(doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> str:
    return _option("", Option(ValueType.TEXT, doc, effect=effect, private_file=True))


def _texts(default: tuple[str, ...], doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> tuple[str, ...]:
    return _option(default, Option(ValueType.TEXTS, doc, effect=effect))


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
_HEADERS_MAX = 10_000  # more are not decoded: `records.windows`
_LARGEST_BATCH_BYTES = 1 << 30  # a record batch states its length in 31 bits
# Kafka's tools count a segment's bytes in 31 bits, and recovery reads a journal file as a whole.
_LARGEST_FILE_BYTES = 1 << 30
_LARGEST_GRPC_BYTES = (1 << 31) - 1
_LARGEST_HTTP2_NUMBER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """`proxies.<cluster>.producer`: batching and writing of messages."""

    channel_buffer_size: int = _integer(
        4096,
        "Messages that the producer's buffer holds. When it is full, requests queue for space. "
        "Partitions that do not answer have half of it while others do; more messages for them are "
        "answered UNAVAILABLE.",
        minimum=1,
    )
    buffer_bytes: int = _bytes(
        64 * _MIB,
        "Bytes of messages that the producer's buffer holds. Record batches appended by clients "
        "may have as many bytes in flight, as many in checks and as many queued; more are answered "
        "UNAVAILABLE.",
    )
    waiting_requests: int = _integer(
        65_536,
        "Requests that may queue for space in the buffer, with at most buffer_bytes of messages. "
        "As many may wait for topics to be created. More are answered UNAVAILABLE.",
        minimum=0,
    )
    max_message_bytes: int = _bytes(
        1_000_000,
        "Largest message (key, value and headers together), and largest record batch that a "
        "client may append. A larger one is rejected.",
        maximum=_LARGEST_BATCH_BYTES,
    )
    timestamp_after_max: float = _seconds(
        3600.0,
        "How far in the future the timestamps of appended and staged records may be: Kafka's "
        "message.timestamp.after.max.ms. Later ones are rejected. Retention by age does not believe "
        "timestamps of more than an hour ahead.",
    )
    max_headers: int = _integer(
        1024,
        "Maximum number of headers of a message, also of an appended or staged one.",
        maximum=_HEADERS_MAX,
    )
    max_header_bytes: int = _bytes(
        262_144, "Maximum size of a message's headers, names and values together.", minimum=0
    )
    compression: str = _choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "Compression of record batches: none, gzip, snappy, lz4 or zstd.",
    )
    flush_bytes: int = _bytes(
        _MIB, "Size at which a record batch is closed and sent.", minimum=0, maximum=_LARGEST_BATCH_BYTES
    )
    flush_frequency: float = _seconds(
        0.0,
        "Linger: how long a record batch gathers messages. With 0s a lone message is sent at "
        "once; messages that arrive together are batched while an earlier batch of their "
        "partition is in flight, and for at most 2 ms otherwise. On a Kafka cluster linger_ms "
        "applies instead: kafka-pixy's files have 500ms here, which would delay every message.",
        effect=EMBEDDED_ONLY,
    )
    linger_ms: int = _integer(
        0,
        "The linger on a Kafka cluster, in milliseconds, under Kafka's name for it.",
        maximum=60_000,
        effect=KAFKA_ONLY,
    )
    partitioner: str = _choice(
        "hash",
        ("hash", "murmur2", "random", "roundrobin"),
        "How the key of a message selects its partition: hash (FNV-1a, as in kafka-pixy), murmur2 "
        "(as in Kafka's Java producer), random or roundrobin. Messages without a key go to any "
        "partition; with hash and murmur2, those that arrive together go to the same one.",
    )
    shutdown_timeout: float = _seconds(30.0, "How long a shutdown waits for buffered messages to be written.")
    required_acks: str = _choice(
        "wait_for_all",
        ("no_response", "wait_for_local", "wait_for_all"),
        "Replicas that must confirm a write: wait_for_local (the leader) or wait_for_all (all "
        "in-sync replicas). no_response is treated as wait_for_all; Produce with async_mode does "
        "not wait.",
        effect=KAFKA_ONLY,
    )
    retry_backoff: float = _seconds(
        10.0,
        "Longest pause before a failed write is tried again. The first pauses are short, and none "
        "exceeds 1s.",
    )
    retry_max: int = _integer(
        6,
        "Messages of Produce with async_mode that cannot be written are tried again for retry_max "
        "times retry_backoff, and for timeout at least; then they are given up, and counted in the "
        "log. Other messages have the time limit alone.",
        minimum=0,
        maximum=100_000,
    )
    timeout: float = _seconds(
        10.0,
        "How long a message may take to be answered, queueing and all attempts included. A node "
        "that is alone has no such limit: it knows what becomes of the message. See retry_max for "
        "async_mode.",
        above=0,
    )


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """`proxies.<cluster>.consumer`: delivery and redelivery of messages."""

    disabled: bool = _boolean(False, "Reject consume requests: they are answered UNAVAILABLE.")
    ack_timeout: float = _seconds(
        300.0,
        "A message that is not acknowledged within this time is offered again, possibly to another client.",
        above=0,
    )
    channel_buffer_size: int = _integer(
        16384,
        "Consume requests of a consumer group and topic that may be queued. More are answered "
        "RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    fetch_max_bytes: int = _bytes(
        _MIB, "Bytes to read from a partition in one fetch.", maximum=_LARGEST_BATCH_BYTES
    )
    long_polling_timeout: float = _seconds(3.0, "How long a consume request waits for a message.", above=0)
    max_pending_messages: int = _integer(
        300,
        "Messages of a partition and consumer group that may be offered and not yet acknowledged.",
        minimum=1,
    )
    max_pending_bytes: int = _bytes(16 * _MIB, "Bytes of such messages.")
    max_fetched_bytes: int = _bytes(
        256 * _MIB,
        "Memory for fetched batches that are not handed out yet, of all consumer groups together; one "
        "fetch is always allowed. When it is used up, partitions take turns with small fetches: those "
        "with waiting requests first, and each that is not read drops its batches, to fetch them "
        "again later.",
    )
    max_unpacked_bytes: int = _bytes(
        256 * _MIB,
        "Bytes of decompressed batches of all consumer groups together; one batch is always allowed, "
        "and a quarter besides for batches that decompress to 256 KiB at most. "
        "When they are used up, partitions take turns: those with waiting requests first, and each "
        "that is not read gives its batch back, to decompress it again later.",
    )
    max_groups: int = _integer(
        10_000,
        "Consumer groups of this cluster that the process is a member of at a time. Requests for "
        "further groups are answered RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    max_subscriptions: int = _integer(
        20_000, "Topics consumed in these groups, each counted once per consumer group.", minimum=1
    )
    max_partitions: int = _integer(
        100_000,
        "Partitions of these topics, counted likewise: each takes about 5 KB while it is consumed. "
        "A lone topic may have more. Partitions that a topic gets later wait until there is room.",
        minimum=1,
    )
    max_retries: int = _integer(
        -1,
        "How many times a message is offered again before it is dropped with a log line; -1: no limit.",
        minimum=-1,
    )
    offsets_commit_interval: float = _seconds(
        0.5, "How often the offsets of consumer groups are committed.", above=0
    )
    subscription_timeout: float = _seconds(
        15.0, "A consumer group gives up a topic after this time without a request for it.", above=0
    )
    initial_offset: str = _choice(
        "oldest",
        ("oldest", "newest"),
        "Where a consumer group without committed offsets starts: oldest or newest.",
    )
    fetch_max_wait: float = _seconds(
        0.25,
        "How long a broker may hold a fetch that finds no records.",
        maximum=_LONGEST_KAFKA_SECONDS,
        effect=KAFKA_ONLY,
    )
    retry_backoff: float = _seconds(
        0.5, "Pause before the coordinator of a consumer group is asked again.", effect=KAFKA_ONLY
    )
    rebalance_delay: float = _seconds(
        0.25,
        "How long a member of a consumer group gathers changes of its topics before it rejoins: "
        "each change stops the whole group for a moment.",
        effect=KAFKA_ONLY,
    )
    rebalance_timeout: float = _seconds(
        10.0,
        "How long a rebalance waits for the acks of offered messages; no others are offered "
        "meanwhile. Messages not acked by then may be offered again, by another member.",
        maximum=_LONGEST_KAFKA_SECONDS,
    )
    session_timeout: float = _seconds(
        15.0,
        "A member of a consumer group loses its partitions when the brokers have not heard from "
        "it for this long. The brokers must allow the value (group.min.session.timeout.ms, "
        "group.max.session.timeout.ms).",
        above=0,
        maximum=_LONGEST_KAFKA_SECONDS,
        effect=KAFKA_ONLY,
    )


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """`proxies.<cluster>.journal`: the write-ahead log of an embedded cluster."""

    file_bytes: int = _bytes(
        32 * _MIB,
        "Size of a journal file, at most 1 GiB: recovery reads one file at a time into memory.",
        minimum=_MIB,
        maximum=_LARGEST_FILE_BYTES,
    )
    max_unapplied_bytes: int = _bytes(
        64 * _MIB,
        "Bytes of records that may be in the journal and in no partition log yet. Beyond that, "
        "records wait before they enter the journal. Bounds the time of recovery.",
        minimum=_MIB,
    )
    retain_bytes: int = _bytes(
        256 * _MIB,
        "Newest bytes of the journal that are kept for replicas on other nodes that lag. Without "
        "other nodes nothing is kept for them.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """`proxies.<cluster>.storage`: the partition logs and checkpoints of an embedded cluster."""

    retention: float = _seconds(
        7 * 24 * 3600.0,
        "How long records are kept, consumed or not. 0s: forever. A topic's own retention_ms "
        "takes precedence. Age follows from the records' timestamps, as in Kafka: records with "
        "old timestamps are deleted soon after they arrive.",
    )
    retention_bytes: int = _bytes(
        0,
        "Bytes kept per partition: beyond them its oldest segments are deleted. 0: no limit. A "
        "topic's own retention_bytes takes precedence.",
        minimum=0,
    )
    retention_check: float = _seconds(
        60.0, "Interval of the checks for expired records and committed offsets.", above=0
    )
    offsets_retention: float = _seconds(
        7 * 24 * 3600.0,
        "How long the committed offsets of a consumer group without consumers are kept. 0s: forever.",
    )
    segment_bytes: int = _bytes(
        256 * _MIB,
        "Size at which a partition rolls to a new segment file, at most 1 GiB. A topic's own "
        "segment_bytes takes precedence.",
        minimum=_MIB,
        maximum=_LARGEST_FILE_BYTES,
    )
    segment_age: float = _seconds(
        24 * 3600.0,
        "Age of its oldest record at which a partition rolls to a new segment file; records are "
        "deleted in whole segments. A topic's own segment_ms takes precedence.",
        above=0,
    )
    cold_read_bytes_per_second: int = _bytes(
        128 * _MIB,
        "Rate limit of consumers' reads from disk while messages are written: reads beyond it "
        "wait, so that writes need not. Reads from memory do not count. 0: no limit.",
        minimum=0,
    )
    reserve_bytes: int = _bytes(
        128 * _MIB,
        "Disk space held in reserve. On a full disk it is freed for offset commits and for "
        "operations that free space, and no messages are accepted until it is reserved again. 0: "
        "no reserve.",
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
    """`proxies.<cluster>.staging`: records that are written but not yet published, as by Spark's
    sink.
    """

    max_bytes: int = _bytes(
        10 * 1024 * _MIB,
        "Bytes that may be staged. More are answered RESOURCE_EXHAUSTED until stages are "
        "published or dropped.",
    )
    expiry: float = _seconds(
        24 * 3600.0,
        "Stages of a sink that is idle for this long are dropped: the job that writes them is "
        "presumed dead. So are stages that a publication of their sink has passed over, if "
        "nothing was added to them since. Sinks that published once, without a query, are "
        "forgotten after this time, or after an hour if that is less.",
        above=0,
    )
    sink_retention: float = _seconds(
        0.0,
        "How long the last epoch of a query's sink is remembered after its last publication. 0s: "
        "forever. A query that comes back later would publish its last batch again.",
        effect=("embedded",),
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """`proxies.<cluster>.limits`: how much of everything an embedded cluster keeps."""

    max_topics: int = _integer(
        2500,
        "Topics of the cluster, over all nodes. Requests for more are answered "
        "RESOURCE_EXHAUSTED, as for all limits of this section. Those that are there stay.",
        minimum=1,
    )
    max_partitions: int = _integer(
        0,
        "Partitions of all its topics together. 0: 10000 while the cluster has one node, and 1000 "
        "with several: each partition with replicas on other nodes takes processor time while one "
        "of its nodes is away, 1000 of them 5 to 8 % of a core of each node. At rest it is 1 to 2 %.",
    )
    max_groups: int = _integer(
        20_000,
        "Consumer groups that have committed offsets, or members, on any node. Eight equal parts of "
        "them, by a hash of their names, are counted each on its own. consumer.max_groups is for "
        "the groups that one process takes part in at a time.",
        minimum=1,
    )
    max_offsets_bytes: int = _bytes(
        256 << 20,
        "Memory of committed offsets on each node, about: 256 bytes for one, and its metadata. Clients "
        "cannot set further ones beyond that, and consumer groups cannot begin to consume further "
        "partitions; what those that have begun commit always passes. In eight equal parts, as the "
        "groups.",
    )


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """`proxies.<cluster>.kafka`: a Kafka cluster."""

    seed_peers: tuple[str, ...] = _texts(
        ("localhost:9092",), "Bootstrap brokers: host:port of some of the brokers."
    )
    version: str = _text(
        "0.10.2.1",
        "No effect: brokers announce the versions that they support. Kafka 3.1 or newer is required.",
        effect=NO_KIND,
    )
    metadata_max_age: float = _seconds(
        30.0,
        "How often topics and partitions added by others are looked for. Moved partitions are "
        "noticed at once.",
        above=0,
    )
    transaction_timeout: float = _seconds(
        120.0,
        "How long publishing staged records may take; the brokers abort a longer publication. If "
        "a daemon dies while it publishes and is not restarted, consumers wait behind its records "
        "until then. At most the brokers' transaction.max.timeout.ms.",
        above=0,
        maximum=_LONGEST_KAFKA_SECONDS,
    )
    tls: bool = _boolean(False, "Connect with TLS.")
    ca_certificate_file: str = _text("", "Trusted certificate authority, PEM.")
    client_certificate_file: str = _text("", "Client certificate to present to the brokers, PEM.")
    client_key_file: str = _private_file("Private key of that certificate, PEM.")
    insecure: bool = _boolean(False, "Skip verification of the brokers' certificates.")


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """`proxies.<cluster>.net.sasl`: authentication at a Kafka cluster."""

    enable: bool = _boolean(False, "Authenticate with SASL.")
    mechanism: str = _choice(
        "PLAIN",
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        "Mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 with user and password, or OAUTHBEARER "
        "with a token.",
    )
    handshake: bool = _boolean(False, "No effect: the handshake is always sent.", effect=NO_KIND)
    user: str = _text("", "User name.")
    password: str = _text("", "Password.", secret=True)
    token_path: str = _private_file(
        "File with the token of OAUTHBEARER. It is read for every connection: renew the token by "
        "rewriting the file.",
    )


@dataclass(frozen=True, slots=True)
class NetConfig:
    """`proxies.<cluster>.net`: connections to a Kafka cluster."""

    dial_timeout: float = _seconds(
        30.0, "How long connecting may take, TLS and authentication included.", above=0
    )
    read_timeout: float = _seconds(
        30.0, "How long a broker may take to answer a request before the connection is closed.", above=0
    )
    write_timeout: float = _seconds(
        30.0, "No effect: read_timeout counts from the start of a request.", above=0, effect=NO_KIND
    )
    sasl: SaslConfig = _section(SaslConfig, SaslConfig, "Authentication.")


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """`proxies.<cluster>.zoo_keeper`: accepted for kafka-pixy's files, and ignored."""

    seed_peers: tuple[str, ...] = _texts(("localhost:2181",), "Servers of the ensemble.")
    chroot: str = _text("", "Path of Kafka's nodes.")
    session_timeout: float = _seconds(15.0, "Lifetime of a session.", above=0)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`proxies.<cluster>`: one cluster served by the daemon."""

    kind: str = _choice(
        "embedded",
        ("embedded", "kafka"),
        "Kind of cluster: embedded (pixy's own log, in data_dir) or kafka (an Apache Kafka "
        "cluster). An entry with a `kafka` section and without this option is kafka, as in "
        "kafka-pixy's files.",
    )
    client_id: str = _text("", "Name of this process in consumer groups. Empty: pixy_<host>_<process id>.")
    auto_create_topics: bool = _boolean(
        True, "Create a topic on the first produce or consume request for it."
    )
    auto_create_patterns: tuple[str, ...] = _texts(
        (),
        "Names of the topics that are created so, with * for any characters and ? for one: orders-* or "
        "tmp.?. Others have to be created on purpose, so a misspelt name creates none. Empty: all.",
    )
    default_partitions: int = _integer(
        4, "Number of partitions of topics that are created automatically.", minimum=1, maximum=10_000
    )
    producer: ProducerConfig = _section(
        ProducerConfig, ProducerConfig, "Writing: batching, compression and partitioning of messages."
    )
    consumer: ConsumerConfig = _section(
        ConsumerConfig,
        ConsumerConfig,
        "Reading on behalf of consumer groups: delivery, redelivery and offsets.",
    )
    journal: JournalConfig = _section(
        JournalConfig, JournalConfig, "Write-ahead log of an embedded cluster.", effect=EMBEDDED_ONLY
    )
    storage: StorageConfig = _section(
        StorageConfig,
        StorageConfig,
        "Partition logs and checkpoints of an embedded cluster.",
        effect=EMBEDDED_ONLY,
    )
    staging: StagingConfig = _section(
        StagingConfig, StagingConfig, "Records that are written but not yet published."
    )
    limits: LimitsConfig = _section(
        LimitsConfig,
        LimitsConfig,
        "Limits of an embedded cluster; the same on all its nodes.",
        effect=EMBEDDED_ONLY,
    )
    kafka: KafkaConfig = _section(
        KafkaConfig, KafkaConfig, "The Kafka cluster to connect to.", effect=KAFKA_ONLY
    )
    net: NetConfig = _section(NetConfig, NetConfig, "Connections to the Kafka cluster.", effect=KAFKA_ONLY)
    zoo_keeper: ZooKeeperConfig = _section(
        ZooKeeperConfig, ZooKeeperConfig, "Ignored: pixy needs no ZooKeeper.", effect=NO_KIND
    )

    @property
    def effective_producer(self) -> ProducerConfig:
        """`producer`, with the linger of this kind of cluster as its `flush_frequency`."""
        if self.kind != "kafka":
            return self.producer
        return replace(self.producer, flush_frequency=self.producer.linger_ms / 1000)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`tls`: certificates of the server."""

    certificate_path: str = _text("", "Certificate chain of the server, PEM. Empty: no TLS.")
    key_path: str = _private_file("Private key of that certificate, PEM.")
    client_ca_path: str = _text(
        "",
        "Certificate authority of client certificates, PEM. Clients must present a certificate "
        "signed by it. Empty: no client certificates.",
    )
    reload_interval: float = _seconds(
        10.0,
        "How often these files are checked for changes. New connections use the new certificate, "
        "open ones stay. 0s: never.",
    )


@dataclass(frozen=True, slots=True)
class AdvertisedConfig:
    """`advertised`: addresses of this node as others reach it."""

    peer: str = _text(
        "",
        "Address and port for the other nodes. Empty: peer_addr. Required if that is an address of "
        "all interfaces, such as 0.0.0.0.",
    )
    grpc: str = _text(
        "",
        "Address and port for clients, as `pixy cluster status` shows it. Empty: grpc_addr.",
    )


@dataclass(frozen=True, slots=True)
class PeerTlsConfig:
    """`cluster.tls`: certificates between nodes."""

    cert_file: str = _text("", "Certificate of this node, PEM, for both directions. Empty: no TLS.")
    key_file: str = _private_file("Private key of that certificate, PEM.")
    ca_file: str = _text(
        "",
        "Certificate authority of the nodes, PEM. Use one that signs for this cluster alone: "
        "whoever has a certificate of it is let in as a node.",
    )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """`cluster`: the nodes that form a cluster."""

    join: tuple[str, ...] = _texts(
        (),
        "Peer addresses of the nodes that form the cluster at their first start, this one among "
        "them; the same on all of them, in any order. This node alone: a cluster of one, which other "
        "nodes can join later. Empty: a cluster of one that listens to no peer. A node that belongs to "
        "a cluster asks them only while it reaches no other one.",
    )
    secret_file: str = _text(
        "",
        "File with a secret of at least 16 bytes, the same on all nodes. Each node proves to the "
        "others that it knows it. What nodes then send is neither encrypted nor protected from "
        "changes: for that set tls. Peer addresses beyond loopback require one or the other. The file "
        "is read again when it changes.",
    )
    second_secret_file: str = _text(
        "",
        "File with another secret that nodes may prove while secret_file is being changed. Empty, or no "
        "file there: none.",
    )
    tls: PeerTlsConfig = _section(
        PeerTlsConfig, PeerTlsConfig, "Mutual TLS between nodes. All three files, or none."
    )
    rack: str = _text("", "Where the node stands, such as a rack or zone; shown by `pixy cluster status`.")


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """One entry of `logging`."""

    name: str = _choice("console", ("console", "json"), "console (for people) or json (one object per line).")
    severity: str = _choice(
        "info", ("debug", "info", "warning", "error"), "Minimum severity: debug, info, warning or error."
    )


@dataclass(frozen=True, slots=True)
class GrpcConfig:
    """`grpc`: the gRPC server. Each limit bounds what one client can cost the others."""

    max_message_bytes: int = _bytes(
        4 * _MIB,
        "Largest request message, compressed or not. Must exceed the largest "
        "producer.max_message_bytes by at least 65536 bytes. A larger request is answered "
        "RESOURCE_EXHAUSTED.",
        maximum=_LARGEST_GRPC_BYTES,
    )
    max_connections: int = _integer(
        10_000,
        "Maximum number of connections; further ones are closed at once. An idle connection takes "
        "about 12 KB. The daemon lowers and logs the limit if the limit of open files does not "
        "allow as many beside the files of the clusters.",
        minimum=1,
    )
    max_calls: int = _integer(
        50_000,
        "Maximum number of open calls of all connections: those that wait, like long polls, and "
        "those at work. Further ones are answered RESOURCE_EXHAUSTED. A call takes 1 to 10 KB while "
        "it is open.",
        minimum=1,
    )
    max_concurrent_streams: int = _integer(
        4096,
        "Concurrent calls per connection. Clients with thousands of long polls use one "
        "connection. Further calls are refused, and safe to retry.",
        minimum=1,
        maximum=_LARGEST_HTTP2_NUMBER,
    )
    output_buffer_bytes: int = _bytes(
        8 * _MIB,
        "Bytes of responses of a connection that wait for the client's flow-control windows, or "
        "for a transport that the client does not read fast enough. Calls whose response would "
        "exceed it are cancelled (RST_STREAM), and their messages are offered to other clients. A "
        "client with many concurrent calls with large responses must read them as they arrive. "
        "Fetches of record batches wait for space in half of it. Must be at least "
        "max_message_bytes.",
        maximum=_LARGEST_HTTP2_NUMBER,
    )
    buffer_bytes: int = _bytes(
        256 * _MIB,
        "The same for all connections together: incomplete requests and waiting responses. Large "
        "requests are admitted while they fit in half of it, and wait otherwise. Beyond it the "
        "connections that hold the most are closed. Must be at least "
        "output_buffer_bytes.",
    )
    handshake_timeout: float = _seconds(
        10.0,
        "How long a client may take for the TLS and HTTP/2 handshakes, and for a header block. 0s: no limit.",
    )
    request_timeout: float = _seconds(
        120.0,
        "How long a client may take to complete a request, or a message on a stream, before the "
        "call is answered DEADLINE_EXCEEDED. Time that a large request waits for buffer space "
        "does not count; while others wait for it, such a request needs 32 KiB a second besides. "
        "0s: no limit.",
    )
    keepalive: float = _seconds(
        60.0, "A connection that has received nothing for this long is sent a PING. 0s: never."
    )
    idle_timeout: float = _seconds(
        0.0,
        "A connection without calls for this long is closed gracefully. 0s: never, because "
        "clients keep connections for long.",
    )
    stall_timeout: float = _seconds(
        300.0,
        "How long a client may read nothing of a response, or take it in pieces of less than 128 "
        "bytes, before the call is reset; the connection is closed if it reads nothing at all "
        "(CVE-2019-9517). 0s: no limit.",
    )
    max_connection_age: float = _seconds(
        0.0,
        "A connection older than this, give or take a tenth, is closed gracefully, so that "
        "clients spread again over the servers behind a name. 0s: never.",
    )


def _one_default_proxy() -> Mapping[str, ProxyConfig]:
    return MappingProxyType({"default": ProxyConfig()})


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a daemon."""

    grpc_addr: str = _text(
        "127.0.0.1:19091",
        "Address and port of the gRPC API, or the path of a unix socket. Port 0 picks a free "
        "port; empty: unix_addr only. 127.0.0.1 is reachable from this machine only; an address "
        "that other machines reach needs tls with client_ca_path, or insecure.",
    )
    insecure: bool = _boolean(
        False,
        "Serve gRPC on an address that other machines reach without client certificates: whoever "
        "reaches it may read, write and delete everything.",
    )
    unix_addr: str = _text(
        "",
        "Path of an additional unix socket for the gRPC API, for the user of the daemon alone, with "
        "mode 0600. Empty: none.",
    )
    tcp_addr: str = _text(
        "", "Address and port of kafka-pixy's HTTP API, which this release does not have.", effect=NO_KIND
    )
    peer_addr: str = _text(
        "127.0.0.1:19094",
        "Address and port for the other nodes of embedded clusters, and for other pixies in front of "
        "the same Kafka clusters. Listened to only with cluster.join or peers, or once others have "
        "joined. Port 0 picks a free port; empty: the node is alone; one that has others does not start.",
    )
    peers: tuple[str, ...] = _texts(
        (),
        "Peer addresses of all pixies in front of the same Kafka clusters, this one among them; the "
        "same on all of them, in any order. They pass acks and messages on to each other, so a client "
        "may use any of them for each call. Empty: each pixy acks only what it has offered.",
        effect=KAFKA_ONLY,
    )
    data_dir: str = _text(
        "./pixy-data",
        "Directory of the embedded clusters; each has a subdirectory of its name, for the user of the "
        "daemon alone.",
    )
    default_cluster: str = _text(
        "", "Cluster of requests that name none. Empty: the first one under proxies."
    )
    shutdown_timeout: float = _seconds(30.0, "How long a shutdown may take before it is cut short.")
    client_share_percent: int = _integer(
        50,
        "Largest part, in percent, that the clients of one address may take of "
        "grpc.max_connections, grpc.max_calls and the buffer of large requests, and of "
        "consumer.max_groups, consumer.max_subscriptions, consumer.max_partitions, "
        "staging.max_bytes and sinks of each cluster, so that they cannot shut out all others. All "
        "unix sockets are one address, and so is an IPv6 network of 64 bits. 100: no such limit, for "
        "a server whose clients all come through one proxy.",
        minimum=1,
        maximum=100,
    )
    tls: TlsConfig = _section(TlsConfig, TlsConfig, "TLS of the gRPC API, on TCP.")
    advertised: AdvertisedConfig = _section(
        AdvertisedConfig,
        AdvertisedConfig,
        "Addresses of this node as others reach it, where they differ from those that it listens on.",
    )
    cluster: ClusterConfig = _section(
        ClusterConfig,
        ClusterConfig,
        "The nodes that form a cluster. Each embedded entry under proxies is a cluster of its own "
        "over the same nodes.",
        effect=EMBEDDED_ONLY,
    )
    logging: tuple[LoggingConfig, ...] = _section(
        LoggingConfig,
        lambda: (LoggingConfig(),),
        "Logs on standard error: format and minimum severity.",
        form="list",
    )
    grpc: GrpcConfig = _section(GrpcConfig, GrpcConfig, "Limits of the gRPC API.")
    proxies: Mapping[str, ProxyConfig] = _section(
        ProxyConfig,
        _one_default_proxy,
        "The clusters by name: letters, digits, dot, dash and underscore.",
        form="map",
    )
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings for the operator, logged by the daemon."""

    @property
    def effective_default_cluster(self) -> str:
        """The cluster of requests that name none."""
        return self.default_cluster or next(iter(self.proxies))


def values_of(section: Any) -> dict[str, Any]:
    """Values of a section's options and subsections by name, in table order."""
    return {name: getattr(section, name) for name in members(type(section))}
