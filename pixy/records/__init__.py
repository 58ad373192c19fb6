"""Kafka v2 record batches, the unit of storage, replication and fetching; and partitioners.

Names that depend on the codec are imported on first use: the Spark connector runs in short-lived
processes that do not need it, and importing it would take longer than their work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pixy.records.batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    base_offset,
    batch_bytes,
    check_batch,
    count_batches,
    is_batch,
    offsets_of,
    patch_batch,
    patch_producer,
    read_header,
    split_batches,
)
from pixy.records.crc import crc32c
from pixy.records.positions import ForeignCommit, OffsetCommit, OffsetRange, TopicPartition
from pixy.records.producers import (
    ANY_FORGOTTEN,
    NO_PRODUCER_BYTE,
    PRODUCER_AT,
    PRODUCERS_MAX,
    KeptProducers,
    ProducerBatch,
    ProducerTable,
    has_producer,
    producer_batch,
)
from pixy.records.topic_name import check_topic_name
from pixy.records.unpack import UNPACKED_BYTES_MAX

if TYPE_CHECKING:
    from pixy.records.batch_validation import (
        FORWARDED_LIMITS,
        BatchLimits,
        CheckEffort,
        LongCheckError,
        NewBatch,
        check_forwarded_batches,
        check_new_batches,
        check_next_batch,
    )
    from pixy.records.codec import (
        COMPRESSION,
        Header,
        NewRecord,
        NewRecordFields,
        Record,
        UnpackedRecords,
        build_batch,
        build_control_batch,
        compress_records,
        decompress_records,
        read_control_record,
        read_records,
        unpack_records,
    )
    from pixy.records.partitioner import PARTITIONERS, Partitioner, make_partitioner
    from pixy.records.small import NOT_SMALL, headers_of_small

__all__ = [
    "ANY_FORGOTTEN",
    "COMPRESSION",
    "FORWARDED_LIMITS",
    "HEADER_BYTES",
    "LENGTH_PREFIX_BYTES",
    "MAGIC",
    "NOT_SMALL",
    "NO_PRODUCER_BYTE",
    "PARTITIONERS",
    "PRODUCERS_MAX",
    "PRODUCER_AT",
    "UNPACKED_BYTES_MAX",
    "BatchHeader",
    "BatchLimits",
    "CheckEffort",
    "ForeignCommit",
    "Header",
    "KeptProducers",
    "LongCheckError",
    "NewBatch",
    "NewRecord",
    "NewRecordFields",
    "OffsetCommit",
    "OffsetRange",
    "Partitioner",
    "ProducerBatch",
    "ProducerTable",
    "Record",
    "TopicPartition",
    "UnpackedRecords",
    "base_offset",
    "batch_bytes",
    "build_batch",
    "build_control_batch",
    "check_batch",
    "check_forwarded_batches",
    "check_new_batches",
    "check_next_batch",
    "check_topic_name",
    "compress_records",
    "count_batches",
    "crc32c",
    "decompress_records",
    "has_producer",
    "headers_of_small",
    "is_batch",
    "make_partitioner",
    "offsets_of",
    "patch_batch",
    "patch_producer",
    "producer_batch",
    "read_control_record",
    "read_header",
    "read_records",
    "split_batches",
    "unpack_records",
]

_LATE = {
    **dict.fromkeys(
        (
            "COMPRESSION",
            "Header",
            "NewRecord",
            "NewRecordFields",
            "Record",
            "UnpackedRecords",
            "build_batch",
            "build_control_batch",
            "compress_records",
            "decompress_records",
            "read_control_record",
            "read_records",
            "unpack_records",
        ),
        "pixy.records.codec",
    ),
    **dict.fromkeys(
        (
            "FORWARDED_LIMITS",
            "BatchLimits",
            "CheckEffort",
            "LongCheckError",
            "NewBatch",
            "check_forwarded_batches",
            "check_new_batches",
            "check_next_batch",
        ),
        "pixy.records.batch_validation",
    ),
    **dict.fromkeys(("PARTITIONERS", "Partitioner", "make_partitioner"), "pixy.records.partitioner"),
    **dict.fromkeys(("NOT_SMALL", "headers_of_small"), "pixy.records.small"),
}
"""Modules of the names that need the codec, or are needed only with it."""


if not TYPE_CHECKING:  # or type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_LATE[name]), name)
        globals()[name] = value
        return value
