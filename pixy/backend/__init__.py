"""The interface of the layers that serve clients to the cluster that stores messages."""

from pixy.backend.embedded import EmbeddedBackend
from pixy.backend.protocol import (
    BATCH_MEMORY_BYTES,
    Backend,
    Batch,
    ClusterStatus,
    ConsumerMembership,
    DividedPart,
    FetchResult,
    Lease,
    OffsetCommit,
    OffsetRange,
    Published,
    StagedBatches,
    StageSeal,
    TopicDescription,
    TopicPartition,
)

__all__ = [
    "BATCH_MEMORY_BYTES",
    "Backend",
    "Batch",
    "ClusterStatus",
    "ConsumerMembership",
    "DividedPart",
    "EmbeddedBackend",
    "FetchResult",
    "Lease",
    "OffsetCommit",
    "OffsetRange",
    "Published",
    "StageSeal",
    "StagedBatches",
    "TopicDescription",
    "TopicPartition",
]
