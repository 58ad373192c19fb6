"""Checkpoints of a node's state groups: when one is due, and its way to the disk.

A checkpoint is written after a number of entries or bytes, and when the journal or a follower waits
for it. The state is captured on the event loop, never while an entry is being applied, and written
by the thread for files.

A follower that the leader's journal cannot serve any more gets the newest checkpoint:

    leader      `snapshot`: position and configuration, in a message of the Raft core
    follower    `install`: the checkpoint, however it came, is written durably; its state was made
                on another thread
                the journal records that the log begins behind it (`Snapshots.arrived`)
                `restored`: it replaces the state

A crash before the record leaves a checkpoint ahead of the journal: the next start writes the record
(`Snapshots.finish_install`).
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from pixy.aio.steps import LaterSteps
from pixy.clock import Clock
from pixy.cluster.log.replica import RestoredState, StateReplica
from pixy.cluster.state import GroupsState
from pixy.config import StorageConfig
from pixy.multiraft import RaftGroup
from pixy.raft import Snapshot
from pixy.storage import CheckpointId, Worker, is_disk_full

log = structlog.get_logger(__name__)


class Checkpoints:
    """Writes checkpoints.

    Args:
        storage: thresholds of entries and bytes.
        clock: time of checkpoints.
        files: the thread that writes them.
        propose_empty: proposes an empty entry to a state group, and calls back when it is applied,
            or will not be.
        on_written: called when a checkpoint of a state group is durable.
        on_full: called when the disk has no room for one.
        on_fault: called with any other error of one.
    """

    def __init__(
        self,
        storage: StorageConfig,
        clock: Clock,
        files: Worker,
        propose_empty: Callable[[StateReplica, Callable[[bool], None]], None],
        on_written: Callable[[StateReplica], None],
        on_full: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._files = files
        self._propose_empty = propose_empty
        self._on_written = on_written
        self._on_full = on_full
        self._on_fault = on_fault
        # States of leaders on their way. There may be several of a group: another one may come
        # before the log reset of the one before is durable.
        self._installing: dict[tuple[RaftGroup, CheckpointId], RestoredState] = {}
        self._letting_go = LaterSteps()
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def stop(self) -> None:
        """Begin no further checkpoint, and ignore errors: the node stops."""
        self._stopped = True

    def applied(self, replica: StateReplica) -> None:
        """An entry of a state group was applied: write a checkpoint if one is due."""
        storage = self._storage
        if (
            replica.entries_since >= storage.checkpoint_entries
            or replica.bytes_since >= storage.checkpoint_bytes
        ):
            self.write(replica)

    def write(self, replica: StateReplica) -> None:
        """Write a checkpoint of a state group, unless that is under way or would be no new one."""
        group = replica.group
        if replica.checkpointing or group.storage.conf_index > group.applied_index:
            return
        if not replica.checkpoints or replica.checkpoints[-1].end_offset < group.applied_index:
            replica.checkpointing = True
            # Not at once: the entry that calls for it has no result yet, and that belongs to it.
            self._loop.call_soon(self._begin, replica)
        elif group.decides:
            # Two checkpoints must differ, so that the journal can be cut below the older: an empty
            # entry makes the difference.
            replica.checkpointing = True
            self._propose_empty(replica, partial(self._begin_behind_empty, replica))

    def _begin_behind_empty(self, replica: StateReplica, applied: bool) -> None:
        if applied:
            self._begin(replica)
        else:
            replica.checkpointing = False

    def _begin(self, replica: StateReplica) -> None:
        if self._stopped:
            replica.checkpointing = False
            return
        (term, index), conf_state = replica.group.applied, replica.group.storage.conf_state
        replica.entries_since = replica.bytes_since = 0
        self._files.submit(
            partial(
                replica.store.write,
                CheckpointId(term, index),
                replica.checkpoint_records(),
                self._clock.wall_ms(),
            ),
            partial(self._written, replica, Snapshot(index, term, conf_state)),
        )

    def _written(
        self,
        replica: StateReplica,
        snapshot: Snapshot,
        ids: list[CheckpointId] | None,
        error: BaseException | None,
    ) -> None:
        replica.checkpointing = False
        if error is not None or ids is None:
            self.failed(replica, error)
            return
        replica.set_checkpoints(ids, snapshot)
        self._on_written(replica)

    def failed(self, replica: StateReplica, error: BaseException | None) -> None:
        """A checkpoint could not be written: a full disk gets room, any other error is a fault."""
        log.error("a checkpoint could not be written", state_group=replica.name, error=str(error))
        if is_disk_full(error):
            self._on_full()
        elif error is not None and not self._stopped:
            # What a failed sync left behind looks durable to the next checkpoint, and is not.
            self._on_fault(error)

    # --- for followers ----------------------------------------------------------------------------

    def snapshot(self, replica: StateReplica) -> Snapshot | None:
        """The newest checkpoint, for a follower; None if a newer one is to come: the journal does
        not go on from there, or the configuration has changed since. A member that was added has no
        use for a state without it.
        """
        snapshot, storage = replica.snapshot, replica.group.storage
        if snapshot is not None and snapshot.index >= max(storage.start.index, storage.conf_index):
            return snapshot
        self.write(replica)
        return None

    def install(
        self,
        replica: StateReplica,
        id: CheckpointId,
        restored: RestoredState,
        done: Callable[[bool], None],
        records: Iterable[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Make a checkpoint of the leader one of this node's.

        Args:
            restored: its state.
            done: called when it is durable, with False if it cannot be written.
            records: its records, which are written; None if it is a complete download
                (`CheckpointDownload`).
        """
        store = replica.store
        adopt = partial(store.adopt, id)
        work = adopt if records is None else partial(store.write, id, records, self._clock.wall_ms())
        self._files.submit(work, partial(self._installed, replica, id, restored, done))

    def _installed(
        self,
        replica: StateReplica,
        id: CheckpointId,
        restored: RestoredState,
        done: Callable[[bool], None],
        ids: list[CheckpointId] | None,
        error: BaseException | None,
    ) -> None:
        if ids is None:
            self.failed(replica, error)
        else:
            self._installing[replica.group, id] = restored
        done(ids is not None)

    def restored(self, replica: StateReplica, snapshot: Snapshot) -> None:
        """The log begins behind a checkpoint that was installed: it replaces the state."""
        id = CheckpointId(snapshot.term, snapshot.index)
        restored = self._installing.pop((replica.group, id))
        replica.take_over(restored)
        if isinstance(restored.machine, GroupsState):
            self._letting_go.run(restored.machine.let_go())
        replica.entries_since = replica.bytes_since = 0
        replica.set_checkpoints([id], snapshot)

    def not_needed(self, replica: StateReplica, id: CheckpointId) -> None:
        """The log goes on without a checkpoint that was installed."""
        del self._installing[replica.group, id]
