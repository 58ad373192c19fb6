"""The state groups of a node, and their recovery at start.

`metadata` comes first: it holds the number of groups `groups-n`, which is written at the first
start and never changes, and the raft groups that were ever created. Each group is restored from its
newest valid checkpoint and the journal's entries after it.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path

from pixy.cluster.driver import Driver
from pixy.cluster.group_recovery import entry_of, recovered_group
from pixy.cluster.group_states import split_checkpoint
from pixy.cluster.groups import FIRST_GROUPS_GROUP, GroupsState, groups_index
from pixy.cluster.metadata import METADATA_GROUP, MetadataState
from pixy.cluster.proposer_rows import ProposerRows
from pixy.cluster.raft_group import Apply
from pixy.cluster.recovery import RecoveredNode
from pixy.cluster.replica import StateMachine, StateReplica
from pixy.cluster.sinks import SINKS_GROUP, SinksState
from pixy.errors import CorruptData
from pixy.log_position import LogPosition
from pixy.proto.state_pb2 import ForgetTopics, GroupsCommand, GroupStateRecord, HardState
from pixy.storage import CheckpointStore, Disk, LogReset, Worker, run_on

__all__ = ["GROUPS_COUNT", "StateGroups", "check_journal_reaches", "check_reset"]

GROUPS_COUNT = 1
"""Number of groups `groups-n` of a new cluster."""


def check_journal_reaches(name: str, checkpoint: int, last: int) -> None:
    """Check that the journal reaches the end of a checkpoint, at entry `checkpoint`.

    It does not if it was lost or replaced by an older one. An entry is in the journal before it can
    be in a checkpoint, and is removed from there only below the older of two. A node that continued
    from such a checkpoint would leave a gap, which its next start refuses.

    Raises:
        CorruptData: the journal ends with entry `last`, before the checkpoint does.
    """
    if checkpoint > last:
        raise CorruptData(
            f"the newest checkpoint of {name} goes up to entry {checkpoint}, but the journal ends at entry {last}: its files "
            "are missing, or are those of an older state"
        )


def check_reset(name: str, checkpoint: int, reset: LogReset | None) -> None:
    """Check that the newest checkpoint of a state group reaches its newest log reset.

    Raises:
        CorruptData: it ends with entry `checkpoint`, before the reset.
    """
    if reset is not None and reset.position.index > checkpoint:
        raise CorruptData(
            f"the log of {name} begins behind entry {reset.position.index}, but its newest checkpoint goes up to entry "
            f"{checkpoint}: checkpoints are missing"
        )


class StateGroups:
    """The state groups of one node.

    Args:
        disk, directory: the node's data directory.

    Attributes:
        metadata, sinks: state machines; empty before `restore`.
        metadata_replica, sinks_replica: their raft groups, from `restore` on.
        groups: the state groups that hold offsets of consumer groups, from `restore` on.
    """

    metadata_replica: StateReplica
    sinks_replica: StateReplica

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._driver: Driver
        self._apply: Apply
        # Configuration of a group that was never written.
        self._alone: HardState
        self.metadata = MetadataState()
        self.sinks = SinksState()
        self.groups: list[StateReplica] = []
        # Deleted topics whose offsets are not forgotten yet.
        self._deleted_topic_ids: list[bytes] = []

    def group_of(self, consumer_group: str) -> StateReplica:
        """State group that holds the offsets of a consumer group."""
        return self.groups[groups_index(consumer_group, len(self.groups))]

    def offsets_of(self, consumer_group: str) -> GroupsState:
        """State machine that holds the offsets of a consumer group."""
        machine = self.group_of(consumer_group).machine
        assert isinstance(machine, GroupsState)
        return machine

    def groups_states(self) -> list[GroupsState]:
        """State machines that hold the offsets of consumer groups."""
        return [group.machine for group in self.groups if isinstance(group.machine, GroupsState)]

    def topic_deleted(self, topic_id: bytes) -> None:
        """Note a deleted topic, whose offsets are to be forgotten."""
        self._deleted_topic_ids.append(topic_id)

    def forget_offsets(self, propose: Callable[[StateReplica, bytes], None]) -> None:
        """Propose to forget the offsets in topics that were deleted since the last call."""
        if self._deleted_topic_ids:
            command = GroupsCommand(forget_topics=ForgetTopics(topic_ids=self._deleted_topic_ids))
            self._deleted_topic_ids.clear()
            for replica in self.groups:
                propose(replica, command.SerializeToString())

    def deleted_topic_ids(self) -> list[bytes]:
        """Ids of deleted topics that still have committed offsets."""
        live = {topic.topic_id for topic in self.metadata.topics.values()}
        known: set[bytes] = set()
        for state in self.groups_states():
            known |= state.topic_ids()
        return sorted(known - live)

    async def restore(self, recovered: RecoveredNode, files: Worker, driver: Driver, apply: Apply) -> None:
        """Restore every state group. Their entries are applied by `apply`.

        Metadata comes first, with everything that was committed: what the others, and partitions,
        are judged by must be current.

        Raises:
            DataDirectoryError, CorruptData: a file cannot be used, or entries are missing from the
                journal.
        """
        self._driver, self._apply = driver, apply
        self._alone = HardState(voters=[driver.node_id])
        self.metadata_replica = await self._restore(
            recovered, files, METADATA_GROUP, "metadata", self.metadata
        )
        for number in range(self.metadata.groups_count or GROUPS_COUNT):
            raft_group, name = FIRST_GROUPS_GROUP + number, f"groups-{number}"
            state = GroupsState()
            self.groups.append(await self._restore(recovered, files, raft_group, name, state))
            deque(state.sweep(), maxlen=0)
        for raft_group in recovered.journal.groups:
            if raft_group >= self.metadata.next_raft_group:
                raise CorruptData(
                    f"the journal has records of raft group {raft_group}, but the entry that created it is missing"
                )
        self.sinks_replica = await self._restore(recovered, files, SINKS_GROUP, "sinks", self.sinks)
        self._deleted_topic_ids = self.deleted_topic_ids()

    async def _restore(
        self, recovered: RecoveredNode, files: Worker, raft_group: int, name: str, machine: StateMachine
    ) -> StateReplica:
        """Restore one state group, with everything that was committed applied."""
        store = CheckpointStore(self._disk, self._directory / "state" / name)
        checkpoint, ids = await run_on(files, store.load)
        applied = LogPosition(0, 0)
        rows = GroupStateRecord()
        records: list[tuple[bytes, bytes]] = []
        if checkpoint is not None:
            applied = LogPosition(checkpoint.id.epoch, checkpoint.id.end_offset)
            rows, records = split_checkpoint(checkpoint.records)
        configuration = rows.configuration if rows.configuration.voters else self._alone
        found = recovered.group(raft_group)
        check_reset(name, applied.index, found.reset)
        tail = [entry_of(record) for record in found.entries_after(applied.index)]
        group = recovered_group(raft_group, found, applied, tail, configuration)
        replica = StateReplica(group, name, machine, store)
        replica.rows = ProposerRows(rows.rows)
        if checkpoint is not None:
            machine.restore(records)
        replica.set_checkpoints(ids)
        installing = checkpoint is not None and group.has_peers and applied.index > found.end
        if not installing:
            check_journal_reaches(name, applied.index, found.end)
        self._driver.add(group)
        if installing:
            self._driver.finish_install(group)
        self._driver.bind(group, replica, self._apply)
        if group.has_tail:
            await self._driver.catch_up([group])
        return replica
