"""The interface of the layers that serve clients to the cluster that stores messages."""

from pixy.backend.embedded import EmbeddedBackend
from pixy.backend.protocol import (
    AppendDone,
    Assignment,
    Backend,
    Batch,
    ClusterStatus,
    ConsumerMembership,
    FetchResult,
    OffsetCommit,
    OffsetRange,
    PartitionDescription,
    Published,
    Revocation,
    StagedBatches,
    StageSeal,
    TopicDescription,
    TopicPartition,
)

__all__ = [
    "AppendDone",
    "Assignment",
    "Backend",
    "Batch",
    "ClusterStatus",
    "ConsumerMembership",
    "EmbeddedBackend",
    "FetchResult",
    "OffsetCommit",
    "OffsetRange",
    "PartitionDescription",
    "Published",
    "Revocation",
    "StageSeal",
    "StagedBatches",
    "TopicDescription",
    "TopicPartition",
]
