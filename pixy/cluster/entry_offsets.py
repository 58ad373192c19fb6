"""Offsets that the entries of a partition's log take: what a leader counts when it proposes, and a
start and `pixy storage check` verify.
"""

from collections.abc import Iterable

from pixy.proto.state_pb2 import PartitionCommand

__all__ = ["misplaced_batch", "published_records"]


def published_records(command: bytes, publication: int) -> tuple[int, int]:
    """Number of the newest publication behind a command, and the records that the command makes
    part of the log. A publication that was proposed twice counts once.

    Args:
        command: a `PartitionCommand`.
        publication: number of the newest publication before it.

    Raises:
        DecodeError: it cannot be decoded.
    """
    published = PartitionCommand.FromString(command).publish_parts
    if published.publication <= publication:
        return publication, 0
    return published.publication, sum([part.records for part in published.parts])


def misplaced_batch(batches: Iterable[tuple[int, int]], end: int) -> tuple[int, int] | None:
    """The first batch that does not continue a log that ends at offset `end`, None if all do.

    Args:
        batches: base offset and next offset of each batch.

    Returns:
        Its base offset, and the offset where it should begin.
    """
    for base_offset, next_offset in batches:
        if base_offset != end:
            return base_offset, end
        end = next_offset
    return None
