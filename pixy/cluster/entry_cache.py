"""Applied entries in memory, for followers that are close behind: one bound for a whole node.

Of groups with a single member none are kept. Beyond the bound the oldest go, whichever group has
them; a follower that needs those is served from the journal.
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pixy.cluster.raft_group import RaftGroup

__all__ = ["EntryCache"]


class EntryCache:
    """Order in which applied entries leave the memory.

    Args:
        limit: bytes of payload.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        # Applied entries up to an index, with their bytes; in the order in which they were applied.
        self._applied: deque[tuple[RaftGroup, int, int]] = deque()

    def add(self, group: "RaftGroup", size: int) -> None:
        """Entries of a group were applied, `size` bytes up to its applied one."""
        self._applied.append((group, group.applied_index, size))
        self._bytes += size
        while self._bytes > self._limit:
            oldest, index, size = self._applied.popleft()
            self._bytes -= size
            oldest.storage.release(index)
