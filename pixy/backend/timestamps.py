"""The search for a point in time inside of batches that were fetched: the last step, when it is known where to look.

Pure. It decodes records, and a compressed batch may have 32 MiB of them: call it on another thread than the event loop's.
"""

from collections.abc import Sequence

from pixy.backend.protocol import Batch
from pixy.records import read_header, read_records

__all__ = ["first_since"]


def first_since(batches: Sequence[Batch], timestamp_ms: int, at: int) -> int | None:
    """The first offset from `at` on whose record's timestamp is at or after another; decodes no batch that says it has none.

    Raises:
        CorruptData: a batch on the way cannot be decoded.
    """
    for batch in batches:
        if read_header(batch).max_timestamp < timestamp_ms:
            continue
        for record in read_records(batch):
            if record.timestamp >= timestamp_ms and record.offset >= at:
                return record.offset
    return None
