"""Merging of small record batches into larger ones, with the same records in the same order.

A batch costs a request however small it is. Merged are neighbours with one codec; a batch stays as
it is if its timestamps are not of its records, or its first record has none, which the codec cannot
write into a new batch.
"""

from collections.abc import Sequence

from pixy.errors import CorruptData
from pixy.records import HEADER_BYTES, NewRecordFields, build_batch, read_header, unpack_records

_CODECS = range(5)
_GROWTH_BYTES = 16
"""Bytes that a record takes more in another batch: its length, timestamp and offset, at most."""
_NO_TIMESTAMP = -1


def merge_batches(batches: Sequence[bytearray], bytes_max: int) -> list[bytearray]:
    """Whole, intact batches with the records of these.

    Args:
        batches: not larger than `bytes_max`.
        bytes_max: largest size of a merged batch, uncompressed.
    """
    merged: list[bytearray] = []
    # Consecutive batches that become one, their records and codec, and a bound for their size.
    run: list[bytearray] = []
    records: list[NewRecordFields] = []
    codec, run_bytes = 0, HEADER_BYTES

    def end_run() -> None:
        nonlocal run, records, run_bytes
        merged.extend(run if len(run) < 2 else [build_batch(records, codec)])
        run, records, run_bytes = [], [], HEADER_BYTES

    for batch in batches:
        header = read_header(batch)
        size = bytes_max
        if header.attributes in _CODECS and header.base_timestamp != _NO_TIMESTAMP:
            try:
                unpacked = unpack_records(batch, bytes_max)
                fields = [(each.key, each.value, each.headers, each.timestamp) for each in unpacked.records]
                size = unpacked.size - HEADER_BYTES + _GROWTH_BYTES * header.records
            except CorruptData:
                pass  # it is larger than that
        if HEADER_BYTES + size > bytes_max:
            end_run()
            merged.append(batch)
            continue
        if run_bytes + size > bytes_max or header.attributes != codec:
            end_run()
            codec = header.attributes
        run.append(batch)
        records += fields
        run_bytes += size
    end_run()
    return merged
