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
from pixy.records.codec import COMPRESSION, Header, NewRecord, Record, build_batch, read_records
from pixy.records.crc import crc32c

__all__ = [
    "COMPRESSION",
    "HEADER_BYTES",
    "LENGTH_PREFIX_BYTES",
    "BatchHeader",
    "Header",
    "NewRecord",
    "Record",
    "batch_bytes",
    "build_batch",
    "check_batch",
    "crc32c",
    "patch_batch",
    "read_header",
    "read_records",
]
