"""Times from the proposal of an entry at its leader until it is applied there.

One entry of each group is timed at a time, so that an entry costs a comparison.
"""

from time import monotonic

from pixy.metrics import TIME_BOUNDS, Histogram
from pixy.multiraft.raft_group import RaftGroup


class CommitTimes:
    """Times of all groups of a node.

    Attributes:
        seconds: the times.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(TIME_BOUNDS)

    def begin(self, group: RaftGroup, index: int) -> None:
        """An entry is proposed, and none of its group is timed."""
        group.timed, group.timed_at = index, monotonic()

    def end(self, group: RaftGroup) -> None:
        """The timed entry of a group is applied."""
        group.timed = 0
        self.seconds.observe(monotonic() - group.timed_at)
