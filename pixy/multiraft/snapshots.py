"""Snapshots of the raft groups of one node, between the Raft core and whoever moves their data.

At a follower, a message with the position of a snapshot comes first. The core waits for the data;
once that is in its place, the log is reset behind it, by a record of the journal. When that is
durable, the snapshot replaces the application's state.

A leader whose journal does not reach back to what a follower lacks sends such a message, and then
nothing more: until the follower has restored the snapshot or refused it, or the driver is told that
it failed (`snapshot_serving`). Of a partition, a snapshot has a description of the state: a replica
that has all records takes over its position (`partition_snapshots`).
"""

from collections.abc import Callable, Mapping
from functools import partial

from pixy.multiraft.group_driver import GroupDriver
from pixy.multiraft.group_states import hard_state_record, reset_record
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import Snapshot, StateType
from pixy.raft.progress import ProgressState
from pixy.storage import Journal


class Snapshots:
    """Snapshots of the groups of one driver.

    Args:
        driver: goes on with a group.
        journal: the node's journal.
        restore: see `DriverHooks`.

    Attributes:
        offered: groups of which a follower was sent a snapshot. Whether it still waits for it is in
            `waiting`; who finds that none does removes the group.
    """

    def __init__(
        self, driver: GroupDriver, journal: Journal, restore: Callable[[RaftGroup, Snapshot], None]
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._restore = restore
        self.offered: dict[RaftGroup, None] = {}

    # --- leader -----------------------------------------------------------------------------------

    def offer(self, group: RaftGroup, make: Callable[[], Snapshot | None]) -> None:
        """Let followers of a group that the journal cannot serve have a snapshot.

        Args:
            make: returns the newest one, None if there is none yet.
        """
        group.storage.make_snapshot = partial(self._made, group, make)

    def _made(self, group: RaftGroup, make: Callable[[], Snapshot | None]) -> Snapshot | None:
        snapshot = make()
        if snapshot is not None:
            self.offered[group] = None
        return snapshot

    def waiting(self, group: RaftGroup) -> Mapping[int, int]:
        """Followers that this node, as the leader, has sent a snapshot and nothing since: node id
        and index of the snapshot.
        """
        node = group.node
        if node is None or node.raft.state is not StateType.LEADER:
            return {}
        return {
            peer: progress.pending_snapshot
            for peer, progress in node.raft.tracker.progress.items()
            if progress.state is ProgressState.SNAPSHOT
        }

    def ready(self, group: RaftGroup) -> None:
        """There is a snapshot for the followers that wait for one."""
        if group.node is not None:
            group.node.snapshot_ready()
            self._driver.drive(group)

    def report(self, group: RaftGroup, peer: int, *, failed: bool) -> None:
        """A follower has fetched the data of a snapshot, or could not."""
        if group.node is not None:
            group.node.report_snapshot(peer, failed=failed)
            self._driver.drive(group)

    # --- follower ---------------------------------------------------------------------------------

    def arrived(self, group: RaftGroup, snapshot: Snapshot) -> bool:
        """The data of an awaited snapshot is in its place: the log begins anew behind it.

        Returns:
            False if it is not needed any more.
        """
        if group.node is None:
            return False
        needed = group.node.snapshot_arrived(snapshot)
        self._driver.drive(group)
        return needed

    def awaits(self, group: RaftGroup, snapshot: Snapshot) -> bool:
        """True while the data of a snapshot is awaited and needed."""
        return group.node is not None and group.node.awaits_snapshot(snapshot)

    def failed(self, group: RaftGroup, snapshot: Snapshot, *, silently: bool = False) -> None:
        """The data of an awaited snapshot cannot be fetched.

        Args:
            silently: the leader is not told, and offers one again when it has waited long enough;
                else it does after the next heartbeat.
        """
        if group.node is not None:
            group.node.snapshot_failed(snapshot, silently=silently)
            self._driver.drive(group)

    def restored(self, group: RaftGroup, snapshot: Snapshot) -> None:
        """A log reset is durable: continue from the snapshot, whose data is in its place."""
        group.applied_index, group.applied_term = snapshot.index, snapshot.term
        group.storage.reset(group.applied)
        group.reset, group.reset_file = group.applied, self._journal.files[-1].number
        group.durable_index = max(group.durable_index, snapshot.index)
        group.held = None
        self._restore(group, snapshot)
        if group.proposals is not None:
            group.proposals.overtaken()

    def finish_install(self, group: RaftGroup) -> None:
        """A start has found the data of a snapshot, ahead of the journal: begin the log anew behind
        it, whatever the journal has up to there. Called before the group is added.
        """
        storage, position = group.storage, group.applied
        storage.reset(position)
        snapshot = Snapshot(position.index, position.term, storage.conf_state)

        def durable() -> None:
            group.reset = position
            group.hard_state_file = group.reset_file = self._journal.files[-1].number

        records = (reset_record(group.raft_group, snapshot), hard_state_record(group.raft_group, storage))
        self._journal.append(records, durable)
