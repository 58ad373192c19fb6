"""The interface of the layers that serve clients to the cluster that stores messages."""

from pixy.backend.classic import ClassicGroups, GroupCommit
from pixy.backend.embedded import EmbeddedBackend
from pixy.backend.protocol import (
    BATCH_MEMORY_BYTES,
    Backend,
    Batch,
    BrokerNode,
    BrokerNodes,
    ConsumerMembership,
    DividedPart,
    FetchResult,
    KnownRanges,
    Lease,
    LocalLogs,
    PartitionDescription,
    TopicDescription,
)
from pixy.cluster import ClusterStatus
from pixy.records import OffsetCommit, OffsetRange, TopicPartition
from pixy.staging import Published, StagedBatches, StageSeal

__all__ = [
    "BATCH_MEMORY_BYTES",
    "Backend",
    "Batch",
    "BrokerNode",
    "BrokerNodes",
    "ClassicGroups",
    "ClusterStatus",
    "ConsumerMembership",
    "DividedPart",
    "EmbeddedBackend",
    "FetchResult",
    "GroupCommit",
    "KnownRanges",
    "Lease",
    "LocalLogs",
    "OffsetCommit",
    "OffsetRange",
    "PartitionDescription",
    "Published",
    "StageSeal",
    "StagedBatches",
    "TopicDescription",
    "TopicPartition",
]
