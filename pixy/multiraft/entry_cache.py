"""Applied entries in memory, for followers that are close behind: one bound for a whole node.

Of groups with a single member none are kept. Beyond the bound the oldest go, whichever group has
them; a follower that needs those is served from the journal. Entries of a removed group go with it.

An entry counts with its objects, which take more than the payload of a small one. The order itself
holds one row for entries that were applied together, and counts as well. What removed groups have
left in the order is swept out when they are many enough for its length, so that the removal of a
topic with a thousand partitions does not go through it a thousand times.
"""

from collections import deque

from pixy.multiraft.raft_group import RaftGroup

ENTRY_BYTES = 280
"""An entry beside its payload: objects of itself, of its index, of its proposal and of the payload,
and its place in the list of its group.
"""
ROW_BYTES = 128
"""A row of the order."""
_ROWS_PER_SWEEP = 1000
"""Rows of the order for each removed group that a sweep waits for."""


class EntryCache:
    """Order in which applied entries leave the memory.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Invariant: the sum of the bytes in `_applied`.
        self._bytes = 0
        # Applied entries up to an index, with their bytes; in the order in which they were applied.
        self._applied: deque[tuple[RaftGroup, int, int]] = deque()
        # Removed groups since the last sweep.
        self._removed = 0

    def add(self, group: RaftGroup, size: int, count: int) -> None:
        """Entries of a group were applied: so many, with `size` bytes of payload, up to its applied
        one.
        """
        size += count * ENTRY_BYTES + ROW_BYTES
        self._applied.append((group, group.applied_index, size))
        self._bytes += size
        while self._bytes > self._limit:
            oldest, index, size = self._applied.popleft()
            self._bytes -= size
            oldest.storage.release(index)

    def remove(self, group: RaftGroup) -> None:
        """Forget the entries of a group that was removed."""
        group.storage.release(group.storage.last_index())
        self._removed += 1
        if self._removed * _ROWS_PER_SWEEP >= len(self._applied):
            self._removed = 0
            self._applied = deque([row for row in self._applied if row[0].removed is None])
            self._bytes = sum([row[2] for row in self._applied])
