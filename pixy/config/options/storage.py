"""Options of the embedded log: journal, storage, staged writes, limits."""

from dataclasses import dataclass

from pixy.config.options.table import MIB, integer, seconds, size

# Kafka's tools count a segment's bytes in 31 bits, and recovery reads a journal file as a whole.
LARGEST_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """`proxies.<cluster>.journal`: the write-ahead log of an embedded cluster."""

    file_bytes: int = size(
        32 * MIB,
        "Size of a journal file, at most 1 GiB: recovery reads one file at a time into memory.",
        minimum=MIB,
        maximum=LARGEST_FILE_BYTES,
    )
    max_unapplied_bytes: int = size(
        64 * MIB,
        "Bytes of records that may be in the journal and in no partition log yet. Beyond that, "
        "records wait before they enter the journal. Bounds the time of recovery.",
        minimum=MIB,
    )
    retain_bytes: int = size(
        256 * MIB,
        "Newest bytes of the journal that are kept for replicas on other nodes that lag. Without "
        "other nodes nothing is kept for them.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """`proxies.<cluster>.storage`: the partition logs and checkpoints of an embedded cluster."""

    retention: float = seconds(
        7 * 24 * 3600.0,
        "How long records are kept, consumed or not. 0s: forever. A topic's own retention_ms "
        "takes precedence. Age follows from the records' timestamps, as in Kafka: records with "
        "old timestamps are deleted soon after they arrive.",
    )
    retention_bytes: int = size(
        0,
        "Bytes kept per partition: beyond them its oldest segments are deleted. 0: no limit. A "
        "topic's own retention_bytes takes precedence.",
        minimum=0,
    )
    retention_check: float = seconds(
        60.0, "Interval of the checks for expired records and committed offsets.", above=0
    )
    offsets_retention: float = seconds(
        7 * 24 * 3600.0,
        "How long the committed offsets of a consumer group without consumers are kept. 0s: forever.",
    )
    group_initial_rebalance_delay: float = seconds(
        3.0,
        "How long the first member of a group of Kafka clients waits for others, which join it without "
        "a rebalance. 0s: not at all.",
    )
    producers_retention: float = seconds(
        24 * 3600.0,
        "How long a partition knows an idempotent producer that writes nothing, as "
        "producer.id.expiration.ms of Kafka. Ten minutes at most, if the partition has thousands.",
        above=0,
    )
    segment_bytes: int = size(
        256 * MIB,
        "Size at which a partition rolls to a new segment file, at most 1 GiB. A topic's own "
        "segment_bytes takes precedence.",
        minimum=MIB,
        maximum=LARGEST_FILE_BYTES,
    )
    segment_age: float = seconds(
        24 * 3600.0,
        "Age of its oldest record at which a partition rolls to a new segment file; records are "
        "deleted in whole segments. A topic's own segment_ms takes precedence.",
        above=0,
    )
    cold_read_bytes_per_second: int = size(
        128 * MIB,
        "Rate limit of consumers' reads from disk while messages are written: reads beyond it "
        "wait, so that writes need not. Reads from memory do not count. 0: no limit.",
        minimum=0,
    )
    reserve_bytes: int = size(
        128 * MIB,
        "Disk space held in reserve. On a full disk it is freed for offset commits and for "
        "operations that free space, and no messages are accepted until it is reserved again. 0: "
        "no reserve.",
        minimum=0,
    )
    tail_cache_bytes: int = size(
        16 * MIB, "Memory for the newest record batches of the partitions.", minimum=0
    )
    checkpoint_entries: int = integer(
        10_000, "Changes of the cluster's state after which a checkpoint is written.", minimum=1
    )
    checkpoint_bytes: int = size(16 * MIB, "Bytes of such changes after which a checkpoint is written.")


@dataclass(frozen=True, slots=True)
class StagingConfig:
    """`proxies.<cluster>.staging`: records that are written but not yet published, as by Spark's
    sink.
    """

    max_bytes: int = size(
        10 * 1024 * MIB,
        "Bytes that may be staged. More are answered RESOURCE_EXHAUSTED until stages are "
        "published or dropped.",
    )
    expiry: float = seconds(
        24 * 3600.0,
        "Stages of a sink that is idle for this long are dropped: the job that writes them is "
        "presumed dead. So are stages that a publication of their sink has passed over, if "
        "nothing was added to them since. Sinks that published once, without a query, are "
        "forgotten after this time, or after an hour if that is less.",
        above=0,
    )
    sink_retention: float = seconds(
        0.0,
        "How long the last epoch of a query's sink is remembered after its last publication. 0s: "
        "forever. A query that comes back later would publish its last batch again.",
        effect=("embedded",),
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """`proxies.<cluster>.limits`: how much of everything an embedded cluster keeps."""

    max_topics: int = integer(
        2500,
        "Topics of the cluster, over all nodes. Requests for more are answered "
        "RESOURCE_EXHAUSTED, as for all limits of this section. Those that are there stay.",
        minimum=1,
    )
    max_partitions: int = integer(
        0,
        "Partitions of all its topics together. 0: 10000 while the cluster has one node, and 1000 "
        "with several: each partition with replicas on other nodes takes processor time while one "
        "of its nodes is away, 1000 of them 5 to 8 % of a core of each node. At rest it is 1 to 2 %.",
    )
    max_groups: int = integer(
        20_000,
        "Consumer groups that have committed offsets, or members, on any node. Eight equal parts of "
        "them, by a hash of their names, are counted each on its own. consumer.max_groups is for "
        "the groups that one process takes part in at a time.",
        minimum=1,
    )
    max_offsets_bytes: int = size(
        256 << 20,
        "Memory of committed offsets on each node, about: 256 bytes for one, and its metadata. Clients "
        "cannot set further ones beyond that, and consumer groups cannot begin to consume further "
        "partitions; what those that have begun commit always passes. In eight equal parts, as the "
        "groups. Members of groups of Kafka clients count as well.",
    )
    max_group_members: int = integer(
        1000,
        "Members of a group of Kafka clients. Further ones are answered GROUP_MAX_SIZE_REACHED.",
        minimum=1,
        maximum=10_000,
    )
    max_group_member_bytes: int = size(
        256 << 10,
        "Names and metadata of a member of a group of Kafka clients, in all protocols that it knows. All "
        "members of a group together have 4 MiB, with what is assigned to them.",
        minimum=1024,
    )
