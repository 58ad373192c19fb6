"""Kafka v2 record batches, the unit that is stored, replicated and fetched; and the choice of a partition."""

from pixy.records.batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    batch_bytes,
    check_batch,
    patch_batch,
    read_header,
)
from pixy.records.codec import (
    COMPRESSION,
    Header,
    NewRecord,
    NewRecordFields,
    Record,
    build_batch,
    build_control_batch,
    read_control_record,
    read_records,
)
from pixy.records.crc import crc32c
from pixy.records.partitioner import PARTITIONERS, Partitioner, make_partitioner
from pixy.records.positions import OffsetCommit, OffsetRange, TopicPartition
from pixy.records.topic_name import check_topic_name

__all__ = [
    "COMPRESSION",
    "HEADER_BYTES",
    "LENGTH_PREFIX_BYTES",
    "PARTITIONERS",
    "BatchHeader",
    "Header",
    "NewRecord",
    "NewRecordFields",
    "OffsetCommit",
    "OffsetRange",
    "Partitioner",
    "Record",
    "TopicPartition",
    "batch_bytes",
    "build_batch",
    "build_control_batch",
    "check_batch",
    "check_topic_name",
    "crc32c",
    "make_partitioner",
    "patch_batch",
    "read_control_record",
    "read_header",
    "read_records",
]
