"""Linearizable reads of raft groups: called back once everything that was committed before is
applied here, proven by the leader.

A read asks the core for an index (Raft §8), as often as the leader changes, or an answer does not
come, and then waits until the entry at that index is applied. Each attempt has a context of its
own: a late answer to an earlier one would prove nothing.
"""

from collections.abc import Callable, Sequence
from itertools import count

from pixy.cluster.raft_group import GroupRead, RaftGroup
from pixy.raft import NONE, ReadState

__all__ = ["LinearizableReads"]


class LinearizableReads:
    """Reads of the raft groups of one node; each group has its own (`RaftGroup.reads`)."""

    def __init__(self) -> None:
        self._contexts = count(1)

    def add(self, group: RaftGroup, done: Callable[[], None]) -> None:
        """Begin a read."""
        read = GroupRead(done)
        group.reads = [*(group.reads or ()), read]
        self._request(group, read)

    def request_again(self, group: RaftGroup) -> None:
        """Ask again for every read without an index."""
        for read in group.reads or ():
            if not read.index:
                self._request(group, read)

    def _request(self, group: RaftGroup, read: GroupRead) -> None:
        if group.node is not None and group.node.raft.lead != NONE:
            read.context = next(self._contexts).to_bytes(8, "little")
            group.node.read_index(read.context)

    def confirmed(self, group: RaftGroup, states: Sequence[ReadState]) -> None:
        """The leader has answered."""
        for state in states:
            for read in group.reads or ():
                if read.context == state.context:
                    read.index = state.read_index

    def end(self, group: RaftGroup) -> None:
        """Call back the reads whose entry is applied."""
        reads = group.reads or []
        ended = [read for read in reads if 0 < read.index <= group.applied_index]
        group.reads = [read for read in reads if read not in ended] or None
        for read in ended:
            read.done()
