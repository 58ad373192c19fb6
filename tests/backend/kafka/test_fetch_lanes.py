"""pixy/backend/kafka/fetch.py: which of the waiting fetches share a request."""

from typing import Any

from pixy.backend import TopicPartition
from pixy.backend.kafka.fetch import _Lane, _Waiter


def add(lane: _Lane, partition: int, offset: int, *, in_front: bool = False, max_bytes: int = 9) -> _Waiter:
    waiter = _Waiter(TopicPartition("t", partition), b"", offset, max_bytes, None)
    lane.add(waiter, in_front=in_front)
    return waiter


def take(lane: _Lane) -> dict[int, list[_Waiter]]:
    return {number: entry.waiters for (_, number), entry in lane.take().items()}


async def test_fetches_of_one_offset_go_together_and_the_offsets_of_a_partition_one_by_one() -> None:
    lane = _Lane()
    first, other, second = add(lane, 0, 5), add(lane, 0, 3), add(lane, 0, 5, max_bytes=4)
    elsewhere = add(lane, 1, 7)
    (entry, _) = lane.take().values()
    assert (entry.offset, entry.max_bytes, entry.waiters) == (5, 4, [first, second])
    # What returned without data is in front again.
    lane.add(first, in_front=True)
    lane.add(elsewhere, in_front=True)
    assert take(lane) == {0: [first], 1: [elsewhere]}
    assert take(lane) == {0: [other]}
    assert not lane.waiting


async def test_fetches_that_have_ended_are_left_out() -> None:
    lane = _Lane()
    for offset in (1, 2, 3):
        ended = add(lane, 0, offset)
        ended.result.cancel()
    waiting = add(lane, 0, 3)
    assert take(lane) == {0: [waiting]}
    add(lane, 0, 1).result.cancel()
    assert take(lane) == {}
    assert not lane.waiting


async def test_a_request_looks_at_no_fetch_that_it_leaves() -> None:
    """Thousands of them may wait at offsets of their own."""
    lane = _Lane()
    first = add(lane, 0, 0)
    nobody_looks_at: Any = object()
    lane.waiting[b"", 0][1] = [nobody_looks_at]
    assert take(lane) == {0: [first]}
    assert list(lane.waiting[b"", 0]) == [1]
