"""Options of producers and consumers."""

from dataclasses import dataclass

from pixy.config.options.table import (
    EMBEDDED_ONLY,
    KAFKA_ONLY,
    LONGEST_KAFKA_SECONDS,
    MIB,
    boolean,
    choice,
    integer,
    seconds,
    size,
)

HEADERS_MAX = 10_000  # more are not decoded: `records.windows`


LARGEST_BATCH_BYTES = 1 << 30  # a record batch states its length in 31 bits


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """`proxies.<cluster>.producer`: batching and writing of messages."""

    channel_buffer_size: int = integer(
        4096,
        "Messages that the producer's buffer holds. When it is full, requests queue for space. "
        "Partitions that do not answer have half of it while others do; more messages for them are "
        "answered UNAVAILABLE.",
        minimum=1,
    )
    buffer_bytes: int = size(
        64 * MIB,
        "Bytes of messages that the producer's buffer holds, where a header counts 160 bytes more. "
        "Record batches appended by clients may have as many bytes in flight, as many in checks and "
        "as many queued; more are answered UNAVAILABLE.",
    )
    waiting_requests: int = integer(
        65_536,
        "Requests that may queue for space in the buffer, with at most buffer_bytes of messages. "
        "As many may wait for topics to be created. More are answered UNAVAILABLE.",
        minimum=0,
    )
    max_message_bytes: int = size(
        1_000_000,
        "Largest message (key, value and headers together), and largest record batch that a "
        "client may append. A larger one is rejected.",
        maximum=LARGEST_BATCH_BYTES,
    )
    timestamp_after_max: float = seconds(
        3600.0,
        "How far in the future the timestamps of appended and staged records may be: Kafka's "
        "message.timestamp.after.max.ms. Later ones are rejected. Retention by age does not believe "
        "timestamps of more than an hour ahead.",
    )
    max_headers: int = integer(
        1024,
        "Maximum number of headers of a message, also of an appended or staged one.",
        maximum=HEADERS_MAX,
    )
    max_header_bytes: int = size(
        262_144, "Maximum size of a message's headers, names and values together.", minimum=0
    )
    compression: str = choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "Compression of record batches: none, gzip, snappy, lz4 or zstd.",
    )
    flush_bytes: int = size(
        MIB, "Size at which a record batch is closed and sent.", minimum=0, maximum=LARGEST_BATCH_BYTES
    )
    flush_frequency: float = seconds(
        0.0,
        "Linger: how long a record batch gathers messages. With 0s a lone message is sent at "
        "once; messages that arrive together are batched while an earlier batch of their "
        "partition is in flight, and for at most 2 ms otherwise. On a Kafka cluster linger_ms "
        "applies instead: kafka-pixy's files have 500ms here, which would delay every message.",
        effect=EMBEDDED_ONLY,
    )
    linger_ms: int = integer(
        0,
        "The linger on a Kafka cluster, in milliseconds, under Kafka's name for it.",
        maximum=60_000,
        effect=KAFKA_ONLY,
    )
    partitioner: str = choice(
        "hash",
        ("hash", "murmur2", "random", "roundrobin"),
        "How the key of a message selects its partition: hash (FNV-1a, as in kafka-pixy), murmur2 "
        "(as in Kafka's Java producer), random or roundrobin. Messages without a key go to any "
        "partition; with hash and murmur2, those that arrive together go to the same one, asynchronous "
        "ones ten at a time.",
    )
    shutdown_timeout: float = seconds(30.0, "How long a shutdown waits for buffered messages to be written.")
    required_acks: str = choice(
        "wait_for_all",
        ("no_response", "wait_for_local", "wait_for_all"),
        "Replicas that must confirm a write: wait_for_local (the leader) or wait_for_all (all "
        "in-sync replicas). no_response is treated as wait_for_all; Produce with async_mode does "
        "not wait.",
        effect=KAFKA_ONLY,
    )
    retry_backoff: float = seconds(
        10.0,
        "Longest pause before a failed write is tried again. The first pauses are short, and none "
        "exceeds 1s.",
    )
    retry_max: int = integer(
        6,
        "Messages of Produce with async_mode that cannot be written are tried again for retry_max "
        "times retry_backoff, and for timeout at least; then they are given up, and counted in the "
        "log. Other messages have the time limit alone.",
        minimum=0,
        maximum=100_000,
    )
    timeout: float = seconds(
        10.0,
        "How long a message may take to be answered, queueing and all attempts included. A node "
        "that is alone has no such limit: it knows what becomes of the message. See retry_max for "
        "async_mode.",
        above=0,
    )


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """`proxies.<cluster>.consumer`: delivery and redelivery of messages."""

    disabled: bool = boolean(False, "Reject consume requests: they are answered UNAVAILABLE.")
    ack_timeout: float = seconds(
        300.0,
        "A message that is not acknowledged within this time is offered again, possibly to another client.",
        above=0,
    )
    channel_buffer_size: int = integer(
        16384,
        "Consume requests of a consumer group and topic that may be queued. More are answered "
        "RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    fetch_max_bytes: int = size(
        MIB, "Bytes to read from a partition in one fetch.", maximum=LARGEST_BATCH_BYTES
    )
    long_polling_timeout: float = seconds(3.0, "How long a consume request waits for a message.", above=0)
    max_pending_messages: int = integer(
        300,
        "Messages of a partition and consumer group that may be offered and not yet acknowledged.",
        minimum=1,
    )
    max_pending_bytes: int = size(16 * MIB, "Bytes of such messages.")
    max_fetched_bytes: int = size(
        256 * MIB,
        "Memory for fetched batches that are not handed out yet, of all consumer groups together; one "
        "fetch is always allowed. When it is used up, partitions take turns with small fetches: those "
        "with waiting requests first, and each that is not read drops its batches, to fetch them "
        "again later.",
    )
    max_unpacked_bytes: int = size(
        256 * MIB,
        "Bytes of decompressed batches of all consumer groups together; one batch is always allowed, "
        "and a quarter besides for batches that decompress to 256 KiB at most. "
        "When they are used up, partitions take turns: those with waiting requests first, and each "
        "that is not read gives its batch back, to decompress it again later.",
    )
    max_groups: int = integer(
        10_000,
        "Consumer groups of this cluster that the process is a member of at a time. Requests for "
        "further groups are answered RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    max_subscriptions: int = integer(
        20_000, "Topics consumed in these groups, each counted once per consumer group.", minimum=1
    )
    max_partitions: int = integer(
        100_000,
        "Partitions of these topics, counted likewise: each takes about 5 KB while it is consumed. "
        "A lone topic may have more. Partitions that a topic gets later wait until there is room.",
        minimum=1,
    )
    max_waiting_acks: int = integer(
        16_384,
        "Acknowledgements that wait at a time for a rebalance, or for the owner or the end of their "
        "partition, of all consumer groups together. More are answered RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    max_retries: int = integer(
        -1,
        "How many times a message is offered again before it is dropped with a log line; -1: no limit.",
        minimum=-1,
    )
    offsets_commit_interval: float = seconds(
        0.5, "How often the offsets of consumer groups are committed.", above=0
    )
    subscription_timeout: float = seconds(
        15.0, "A consumer group gives up a topic after this time without a request for it.", above=0
    )
    initial_offset: str = choice(
        "oldest",
        ("oldest", "newest"),
        "Where a consumer group without committed offsets starts: oldest or newest.",
    )
    fetch_max_wait: float = seconds(
        0.25,
        "How long a broker may hold a fetch that finds no records.",
        maximum=LONGEST_KAFKA_SECONDS,
        effect=KAFKA_ONLY,
    )
    retry_backoff: float = seconds(
        0.5, "Pause before the coordinator of a consumer group is asked again.", effect=KAFKA_ONLY
    )
    rebalance_delay: float = seconds(
        0.25,
        "How long a member of a consumer group gathers changes of its topics before it rejoins: "
        "each change stops the whole group for a moment.",
        effect=KAFKA_ONLY,
    )
    rebalance_timeout: float = seconds(
        10.0,
        "How long a rebalance waits for the acks of offered messages; no others are offered "
        "meanwhile. Messages not acked by then may be offered again, by another member.",
        maximum=LONGEST_KAFKA_SECONDS,
    )
    session_timeout: float = seconds(
        15.0,
        "A member of a consumer group loses its partitions when the brokers have not heard from "
        "it for this long. The brokers must allow the value (group.min.session.timeout.ms, "
        "group.max.session.timeout.ms).",
        above=0,
        maximum=LONGEST_KAFKA_SECONDS,
        effect=KAFKA_ONLY,
    )
