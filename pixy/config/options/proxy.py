# ruff: noqa: RUF009 - every call in the classes below ends in dataclasses.field()
"""Options of one cluster that a daemon serves."""

from dataclasses import dataclass, replace

from pixy.config.options.kafka import KafkaConfig, NetConfig, ZooKeeperConfig
from pixy.config.options.messages import ConsumerConfig, ProducerConfig
from pixy.config.options.storage import JournalConfig, LimitsConfig, StagingConfig, StorageConfig
from pixy.config.options.table import (
    EMBEDDED_ONLY,
    KAFKA_ONLY,
    NO_KIND,
    boolean,
    choice,
    integer,
    section,
    text,
    texts,
)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`proxies.<cluster>`: one cluster served by the daemon."""

    kind: str = choice(
        "embedded",
        ("embedded", "kafka"),
        "Kind of cluster: embedded (pixy's own log, in data_dir) or kafka (an Apache Kafka "
        "cluster). An entry with a `kafka` section and without this option is kafka, as in "
        "kafka-pixy's files.",
    )
    client_id: str = text("", "Name of this process in consumer groups. Empty: pixy_<host>_<process id>.")
    auto_create_topics: bool = boolean(True, "Create a topic on the first produce or consume request for it.")
    auto_create_patterns: tuple[str, ...] = texts(
        (),
        "Names of the topics that are created so, with * for any characters and ? for one: orders-* or "
        "tmp.?. Others have to be created on purpose, so a misspelt name creates none. Empty: all.",
    )
    default_partitions: int = integer(
        4, "Number of partitions of topics that are created automatically.", minimum=1, maximum=10_000
    )
    producer: ProducerConfig = section(
        ProducerConfig, ProducerConfig, "Writing: batching, compression and partitioning of messages."
    )
    consumer: ConsumerConfig = section(
        ConsumerConfig,
        ConsumerConfig,
        "Reading on behalf of consumer groups: delivery, redelivery and offsets.",
    )
    journal: JournalConfig = section(
        JournalConfig, JournalConfig, "Write-ahead log of an embedded cluster.", effect=EMBEDDED_ONLY
    )
    storage: StorageConfig = section(
        StorageConfig,
        StorageConfig,
        "Partition logs and checkpoints of an embedded cluster.",
        effect=EMBEDDED_ONLY,
    )
    staging: StagingConfig = section(
        StagingConfig, StagingConfig, "Records that are written but not yet published."
    )
    limits: LimitsConfig = section(
        LimitsConfig,
        LimitsConfig,
        "Limits of an embedded cluster; the same on all its nodes.",
        effect=EMBEDDED_ONLY,
    )
    kafka: KafkaConfig = section(
        KafkaConfig, KafkaConfig, "The Kafka cluster to connect to.", effect=KAFKA_ONLY
    )
    net: NetConfig = section(NetConfig, NetConfig, "Connections to the Kafka cluster.", effect=KAFKA_ONLY)
    zoo_keeper: ZooKeeperConfig = section(
        ZooKeeperConfig, ZooKeeperConfig, "Ignored: pixy needs no ZooKeeper.", effect=NO_KIND
    )

    @property
    def effective_producer(self) -> ProducerConfig:
        """`producer`, with the linger of this kind of cluster as its `flush_frequency`."""
        if self.kind != "kafka":
            return self.producer
        return replace(self.producer, flush_frequency=self.producer.linger_ms / 1000)
