"""Offsets of the entries that a start applies again."""

from pixy.inspect.check_journal import CheckedEntry
from pixy.inspect.replayed_entries import ReplayedEntries, replay
from pixy.proto.state_pb2 import AppliedPosition, PartitionCommand, PublishedPart, PublishParts
from pixy.storage import EntryType


def batches(index: int, *ranges: tuple[int, int]) -> CheckedEntry:
    """An entry with batches from an offset to below another."""
    records = sum(end - begin for begin, end in ranges)
    return CheckedEntry(1, index, EntryType.RECORD_BATCHES, offsets=records, batches=ranges)


def without_offsets(index: int, records: int) -> CheckedEntry:
    return CheckedEntry(1, index, EntryType.RECORD_BATCH, offsets=records)


def publish(index: int, publication: int, records: int) -> CheckedEntry:
    parts = PublishParts(publication=publication, parts=[PublishedPart(records=records)])
    return CheckedEntry(
        1, index, EntryType.COMMAND, PartitionCommand(publish_parts=parts).SerializeToString()
    )


def test_batches_continue_the_log_behind_the_applied_position() -> None:
    applied = AppliedPosition(index=4, end_offset=10)
    entries = [
        batches(5, (10, 12)),
        CheckedEntry(1, 6, EntryType.EMPTY),
        batches(7, (12, 13), (13, 20)),
    ]
    assert replay(applied, entries) == ReplayedEntries(3, 10)
    assert replay(None, [batches(1, (0, 3))]) == ReplayedEntries(1, 3)
    assert replay(None, []) == ReplayedEntries()


def test_the_first_batch_out_of_place_is_named() -> None:
    entries = [batches(1, (0, 2)), batches(2, (2, 3), (4, 5)), batches(3, (0, 1))]
    assert replay(None, entries).fault == "entry 2 has a batch with base offset 4, expected 3"
    assert replay(AppliedPosition(end_offset=1), entries).fault.startswith("entry 1 has a batch with base")


def test_batches_without_offsets_take_those_in_the_order_of_the_entries() -> None:
    assert replay(None, [without_offsets(1, 3), batches(2, (3, 4))]) == ReplayedEntries(2, 4)
    assert replay(None, [without_offsets(1, 3), batches(2, (0, 1))]).fault


def test_a_publication_takes_offsets_once() -> None:
    applied = AppliedPosition(end_offset=5, publication=2)
    entries = [publish(1, 2, 100), publish(2, 3, 4), publish(3, 3, 4), batches(4, (9, 10))]
    assert replay(applied, entries) == ReplayedEntries(4, 5)
