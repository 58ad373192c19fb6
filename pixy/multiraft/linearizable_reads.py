"""Linearizable reads of raft groups: called back once everything that was committed before is
applied here, proven by the leader.

A read asks the core for an index (Raft §8), as often as the leader changes, or an answer does not
come, and then waits until the entry at that index is applied. Each attempt has a context of its
own: a late answer to an earlier one would prove nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from pixy.aio.futures import reject, resolve
from pixy.multiraft.group_driver import GroupDriver
from pixy.multiraft.raft_group import GroupRead, RaftGroup
from pixy.raft import NONE, ReadState


class LinearizableReads:
    """Reads of the raft groups of one node; each group has its own (`RaftGroup.reads`).

    Args:
        driver: goes on with a group.
    """

    def __init__(self, driver: GroupDriver) -> None:
        self._driver = driver
        self._contexts = count(1)
        self._caught_up: asyncio.Future[None] | None = None
        self._fault: BaseException | None = None

    def begin(self, group: RaftGroup, done: Callable[[], None]) -> None:
        """Call back once everything that was committed before is applied here, as the leader has to
        prove, or the group is removed. Waits for a leader if there is none.
        """
        if group.removed is not None:
            done()
            return
        if not group.leads:
            self._driver.seek_leader(group)
        read = GroupRead(done)
        group.reads = [*(group.reads or ()), read]
        self._request(group, read)
        self._driver.drive(group)

    async def catch_up(self, groups: Iterable[RaftGroup]) -> None:
        """Wait until groups have applied everything that was committed before.

        Raises:
            BaseException: the fault that `fail` was given.
        """
        behind = dict.fromkeys(groups)
        if not behind:
            return
        if self._fault is not None:
            raise self._fault
        caught_up = self._caught_up = asyncio.get_running_loop().create_future()

        def applied(group: RaftGroup) -> None:
            behind.pop(group, None)
            if not behind:
                resolve(caught_up, None)

        for group in list(behind):
            self.begin(group, partial(applied, group))
        await caught_up

    def fail(self, fault: BaseException) -> None:
        """End `catch_up` with a fault, also if it begins later: nothing becomes durable."""
        self._fault = fault
        if self._caught_up is not None:
            reject(self._caught_up, fault)

    def removed(self, group: RaftGroup) -> None:
        """Call back every read of a group that was removed: there is nothing to wait for."""
        reads, group.reads = group.reads, None
        for read in reads or ():
            read.done()

    def request_again(self, group: RaftGroup) -> None:
        """Ask again for every read: an answer may be lost, or be about entries that a former leader
        had appended and no other node has got.
        """
        for read in group.reads or ():
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
