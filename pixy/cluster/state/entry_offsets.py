"""Offsets that the entries of a partition's log take: what a leader counts when it proposes, and a
start and `pixy storage check` verify.
"""

from collections.abc import Iterable

from pixy.cluster.state.commands import publication_in
from pixy.proto.state_pb2 import PublishParts


def takes_publication(command: PublishParts, publication: int) -> bool:
    """True if a partition whose newest publication is `publication` takes another one: it is later,
    and its predecessor is there.
    """
    return command.predecessor <= publication < command.publication


def published_records(command: bytes, publication: int) -> tuple[int, int]:
    """Number of the newest publication behind a command, and the records that the command makes
    part of the log. A publication that was proposed twice counts once, one that is out of order not
    at all.

    Args:
        command: a `PartitionCommand`.
        publication: number of the newest publication before it.

    """
    published = publication_in(command)
    if not takes_publication(published, publication):
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
