"""Applied entries in memory: one bound for all groups, the oldest go first."""

from pixy.cluster.entry_cache import EntryCache
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.raft_storage import RaftStorage
from pixy.raft import ConfState, Entry

SIZE = 10


class Cached:
    """A group whose entries of `SIZE` bytes are applied as they come."""

    def __init__(self, cache: EntryCache, raft_group: int = 1000) -> None:
        self.cache = cache
        self.group = RaftGroup(raft_group, RaftStorage(ConfState((1, 2))))

    def store(self, count: int) -> None:
        last = self.group.storage.last_index()
        self.group.storage.append(
            [Entry(1, last + number, data=bytes(SIZE)) for number in range(1, count + 1)]
        )

    def apply(self, count: int = 1) -> None:
        self.store(count)
        self.group.applied_index += count
        self.cache.add(self.group, count * SIZE)

    @property
    def in_memory(self) -> list[int]:
        return [entry.index for entry in self.group.storage.entries_in_memory]


def test_up_to_the_limit_everything_stays() -> None:
    cached = Cached(EntryCache(3 * SIZE))
    for _ in range(3):
        cached.apply()
    assert cached.in_memory == [1, 2, 3]


def test_beyond_the_limit_the_oldest_go() -> None:
    cached = Cached(EntryCache(3 * SIZE))
    for _ in range(5):
        cached.apply()
    assert cached.in_memory == [3, 4, 5]


def test_what_was_applied_together_goes_together() -> None:
    cached = Cached(EntryCache(3 * SIZE))
    cached.apply(2)
    cached.apply(2)
    assert cached.in_memory == [3, 4]


def test_entries_larger_than_the_limit_go_at_once() -> None:
    cached = Cached(EntryCache(3 * SIZE))
    cached.apply(4)
    assert cached.in_memory == []
    cached.apply()
    assert cached.in_memory == [5]


def test_the_oldest_entries_go_whichever_group_has_them() -> None:
    cache = EntryCache(3 * SIZE)
    idle, busy = Cached(cache), Cached(cache, 1001)
    idle.apply(2)
    busy.apply(2)
    assert (idle.in_memory, busy.in_memory) == ([], [1, 2])


def test_entries_that_are_not_applied_stay() -> None:
    cached = Cached(EntryCache(SIZE))
    cached.store(3)
    for index in (1, 2):
        cached.group.applied_index = index
        cached.cache.add(cached.group, SIZE)
    assert cached.in_memory == [2, 3]
