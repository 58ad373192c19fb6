"""Retention of journal files: the end of an entry's life on a node.

A journal file is retained until every raft group has its records elsewhere: a partition in synced
segments with an applied position, a state group in the older of two checkpoints. A state group that
holds back the oldest of several files is made to write a checkpoint. Groups that cannot go on, for
lack of a quorum or because their files are damaged, have their entries relocated. The newest
`journal.retain_bytes` stay for followers that lag, whatever the reason to remove a file. A node
that was alone keeps them from its first follower on, but for a file whose removal has begun: that
follower begins with a snapshot in any case.

Order that recovery relies on, of which this module is the owner:

    relocation      entries of such groups that only the oldest file has
    carry-over      hard states, log resets, applied positions, votes in groups that the node has
                    departed from, the incarnation and the starts of other nodes that only the
                    oldest file has
    durable         all of these: the journal keeps the order of its records
    unlink          of the oldest file

Records for many raft groups are written for some of them in each iteration of the event loop.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pixy.cluster.log.applied_positions import AppliedPositionWriter
from pixy.cluster.log.checkpoints import Checkpoints
from pixy.cluster.log.incarnation import Incarnation
from pixy.cluster.log.peer_start_record import PeerStartRecord
from pixy.cluster.log.relocation import Relocation, is_stuck
from pixy.cluster.log.replica import StateReplica
from pixy.config import JournalConfig
from pixy.multiraft import DepartedGroups, RaftGroup, carry_over
from pixy.proto.state_pb2 import AppliedPosition
from pixy.storage import Journal, JournalFile

_FILES_BEFORE_CHECKPOINT = 4
_GROUPS_PER_ITERATION = 200
_FULL_DISK_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class RetentionDependencies:
    """Writers of the records that outlive a journal file.

    Attributes:
        positions: writes applied positions again.
        checkpoints: lets state groups do without the oldest file.
        relocation: lets groups that are stuck do without it.
        departed: votes in groups that this node has departed from.
        incarnation: the node's incarnation.
        peer_starts: starts of other nodes.
    """

    positions: AppliedPositionWriter
    checkpoints: Checkpoints
    relocation: Relocation
    departed: DepartedGroups
    incarnation: Incarnation
    peer_starts: PeerStartRecord


class JournalRetention:
    """Removes journal files that no raft group needs.

    Args:
        journal: the node's journal.
        groups: every raft group of the node by id; grows with new topics.
        parts: see `RetentionDependencies`.
        config: size of a file, and the bytes that stay while a group has members elsewhere.
    """

    def __init__(
        self,
        journal: Journal,
        groups: Mapping[int, RaftGroup],
        parts: RetentionDependencies,
        config: JournalConfig,
    ) -> None:
        self._journal = journal
        self._groups = groups
        self._parts = parts
        self._retain_bytes = config.retain_bytes
        self._file_bytes = config.file_bytes
        # The oldest file is about to be removed: its records are being written again.
        self._removing = False
        self._retry: asyncio.TimerHandle | None = None
        # Invariant: while False, the journal may have records of groups that are not in `_groups`.
        self._started = False
        self._stopped = False

    def start(self) -> None:
        """Begin to remove files: from here on a raft group of the journal that is not among the
        groups is gone for good.
        """
        self._started = True
        self.maybe_remove()

    def stop(self) -> None:
        """Remove no further file, and write nothing for it."""
        self._stopped = True
        self._parts.checkpoints.stop()
        self._parts.relocation.stop()
        if self._retry is not None:
            self._retry.cancel()

    def retry_later(self) -> None:
        """After a checkpoint that found no room: the files that it holds back may be all that keeps
        the disk full.
        """
        if self._retry is None and not self._stopped:
            self._retry = asyncio.get_running_loop().call_later(_FULL_DISK_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.maybe_remove()

    def maybe_remove(self) -> None:
        """Remove the oldest files that no raft group needs.

        Called when a checkpoint or applied positions have become durable, and when raft groups are
        gone.
        """
        if self._removing or self._stopped or not self._started:
            return
        files = self._journal.files
        if len(files) < 2:
            return
        oldest = files[0]
        present = [(group, span) for id, span in oldest.spans.items() if (group := self._groups.get(id))]
        needed_by = [group for group, span in present if group.durable_index < span[1]]
        if needed_by and len(files) > _FILES_BEFORE_CHECKPOINT:
            for group in needed_by:
                if isinstance(group.application, StateReplica):
                    self._parts.checkpoints.write(group.application)
        if self._is_retained(oldest):
            return
        if not needed_by:
            self._removing = True
            self._begin_carry_over(oldest)
        elif (
            len(files) > _FILES_BEFORE_CHECKPOINT
            and all(is_stuck(group) for group in needed_by)
            and self._parts.relocation.is_worth(_FILES_BEFORE_CHECKPOINT)
        ):
            self._removing = True
            self._parts.relocation.begin(oldest, needed_by, partial(self._begin_carry_over, oldest))

    def _is_retained(self, oldest: JournalFile) -> bool:
        """True if followers may need the entries of a file, whether or not this node needs them."""
        newer = (len(self._journal.files) - 1) * self._file_bytes
        return newer < self._retain_bytes and any(
            group.has_peers for id in oldest.spans if (group := self._groups.get(id)) is not None
        )

    def _begin_carry_over(self, oldest: JournalFile, relocated: bool = True) -> None:
        if relocated:
            self._carry_over(oldest, list(self._groups.values()))
        else:
            self._removing = False

    def _carry_over(self, oldest: JournalFile, groups: list[RaftGroup]) -> None:
        """Write again the hard states, log resets and applied positions that only the oldest file
        has, then unlink it.
        """
        if self._stopped:
            return
        positions: list[AppliedPosition] = []
        for group in groups[:_GROUPS_PER_ITERATION]:
            if self._groups.get(group.raft_group) is not group:
                continue
            if group.position_file == oldest.number:
                assert group.position is not None
                positions.append(group.position)
            carry_over(self._journal, group, oldest.number)
            span = oldest.spans.get(group.raft_group)
            if span is not None:
                # Followers cannot have these entries from here on.
                group.compact(min(span[1], group.durable_index))
        rest = groups[_GROUPS_PER_ITERATION:]
        if rest:
            self._parts.positions.write(positions)
            asyncio.get_running_loop().call_soon(self._carry_over, oldest, rest)
            return
        self._parts.departed.carry_over(oldest.number)
        if self._parts.incarnation.file == oldest.number:
            self._parts.incarnation.write()
        if self._parts.peer_starts.file == oldest.number:
            self._parts.peer_starts.write()
        # Also without positions: when this record is durable, so is everything before it.
        self._parts.positions.write(positions, partial(self._unlink, oldest))

    def _unlink(self, oldest: JournalFile) -> None:
        """Remove a file. The durable positions, reported next, lead to the one after it."""
        self._removing = False
        self._journal.forget([oldest])
