"""Search for a timestamp in fetched batches. Pure.

It decodes records, of which a compressed batch may have 32 MiB: call it on another thread than the
event loop's.
"""

from collections.abc import Sequence

from pixy.backend.protocol import Batch
from pixy.records import read_header, read_records


def first_since(batches: Sequence[Batch], timestamp_ms: int, at: int) -> int | None:
    """The first offset from `at` on whose record has this timestamp or a later one.

    Batches whose maximum timestamp is earlier are not decoded.

    Raises:
        CorruptData: a batch cannot be decoded.
    """
    for batch in batches:
        if read_header(batch).max_timestamp < timestamp_ms:
            continue
        for record in read_records(batch):
            if record.timestamp >= timestamp_ms and record.offset >= at:
                return record.offset
    return None
