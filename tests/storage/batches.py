"""Record batches for the tests of storage."""

from pixy.records import NewRecord, build_batch


def batch(records: int = 1, size: int = 10, timestamp_ms: int = 1000) -> bytearray:
    """A batch of records with values of `size` bytes and timestamps one apart."""
    return build_batch([NewRecord(None, b"v" * size, (), timestamp_ms + at) for at in range(records)])
