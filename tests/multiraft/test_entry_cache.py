"""Applied entries in memory: one bound for all groups, the oldest go first."""

import gc
import os
import tracemalloc

import pytest

from pixy.entry_ids import ProposalId
from pixy.errors import UnknownPartition
from pixy.multiraft.entry_cache import ENTRY_BYTES, ROW_BYTES, EntryCache
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Entry

SIZE = 10
ROW = SIZE + ENTRY_BYTES + ROW_BYTES
"""Bytes of an entry that was applied alone."""


class Cached:
    """A group whose entries of `SIZE` bytes are applied as they come."""

    def __init__(self, cache: EntryCache, raft_group: int = 1000) -> None:
        self.cache = cache
        self.group = RaftGroup(raft_group, RaftStorage(ConfState((1, 2))), 1)

    def store(self, count: int) -> None:
        last = self.group.storage.last_index()
        self.group.storage.append(
            [Entry(1, last + number, data=bytes(SIZE)) for number in range(1, count + 1)]
        )

    def apply(self, count: int = 1) -> None:
        self.store(count)
        self.group.applied_index += count
        self.cache.add(self.group, count * SIZE, count)

    @property
    def in_memory(self) -> list[int]:
        return [entry.index for entry in self.group.storage.entries_in_memory]


def test_up_to_the_limit_everything_stays() -> None:
    cached = Cached(EntryCache(3 * ROW))
    for _ in range(3):
        cached.apply()
    assert cached.in_memory == [1, 2, 3]


def test_beyond_the_limit_the_oldest_go() -> None:
    cached = Cached(EntryCache(3 * ROW))
    for _ in range(5):
        cached.apply()
    assert cached.in_memory == [3, 4, 5]


def test_what_was_applied_together_goes_together() -> None:
    cached = Cached(EntryCache(3 * ROW))
    cached.apply(2)
    cached.apply(2)
    assert cached.in_memory == [3, 4]


def test_entries_larger_than_the_limit_go_at_once() -> None:
    cached = Cached(EntryCache(3 * ROW))
    cached.apply(5)
    assert cached.in_memory == []
    cached.apply()
    assert cached.in_memory == [6]


def test_the_oldest_entries_go_whichever_group_has_them() -> None:
    cache = EntryCache(3 * ROW)
    idle, busy = Cached(cache), Cached(cache, 1001)
    idle.apply(2)
    busy.apply(2)
    assert (idle.in_memory, busy.in_memory) == ([], [1, 2])


def test_entries_that_are_not_applied_stay() -> None:
    cached = Cached(EntryCache(ROW))
    cached.store(3)
    for index in (1, 2):
        cached.group.applied_index = index
        cached.cache.add(cached.group, SIZE, 1)
    assert cached.in_memory == [2, 3]


@pytest.mark.parametrize("together", [1, 10])
def test_an_entry_counts_with_its_objects(together: int) -> None:
    payload, count = 100, 2000
    limit = 1000 * (payload + ENTRY_BYTES + ROW_BYTES // together)
    cached = Cached(EntryCache(limit))
    storage = cached.group.storage
    gc.collect()
    tracemalloc.start()
    try:
        for first in range(1, count, together):
            entries = [
                Entry(300, index, data=os.urandom(payload), kind=1, proposal=ProposalId(2, 5, 1000 + index))
                for index in range(first, first + together)
            ]
            storage.append(entries)
            cached.group.applied_index = storage.last_index()
            cached.cache.add(cached.group, payload * together, together)
        del entries
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * limit < taken < 1.1 * limit


@pytest.mark.parametrize("others", [0, 5000])
def test_what_a_removed_group_had_goes_with_it(others: int) -> None:
    cache = EntryCache(100_000 * ROW)
    stays = Cached(cache)
    for _ in range(others):
        stays.apply()
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(200):
            group = Cached(cache, 2000 + number)
            for _ in range(5):
                group.apply()
            group.group.removed = UnknownPartition("the topic was deleted")
            cache.remove(group.group)
            assert group.in_memory == []
        del group
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Some wait for a sweep of the order, whatever its length.
    assert left < 30_000 + 10 * 5 * ROW
    assert len(stays.in_memory) == others
