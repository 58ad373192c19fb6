"""State groups at a start: each from its newest checkpoint and the journal's entries behind it."""

from functools import partial

from pixy.cluster.log import NodeLog, RecoveredNode, RestoredState, StateMachine, StateReplica, restored_state
from pixy.entry_ids import LogPosition
from pixy.errors import CorruptData
from pixy.multiraft import Apply, conf_state_of, continues, entry_of, recovered_group
from pixy.proto.state_pb2 import HardState
from pixy.raft import Snapshot
from pixy.storage import CheckpointId, CheckpointStore, LogReset, run_on


def check_journal_reaches(name: str, checkpoint: LogPosition, end: int, term: int) -> None:
    """Check that the journal has the last entry of a checkpoint.

    It does not if it was lost or replaced by another one. An entry is in the journal before it can
    be in a checkpoint, and is removed from there only below the older of two. A node that continued
    from such a checkpoint would leave a gap, which its next start refuses.

    Args:
        checkpoint: the last entry in the checkpoint.
        end: last entry that the journal knows of.
        term: term that the journal has of the checkpoint's last entry; 0 if it does not have it.

    Raises:
        CorruptData: it does not.
    """
    if checkpoint.index > end:
        raise CorruptData(
            f"the newest checkpoint of {name} goes up to entry {checkpoint.index}, but the journal ends at entry {end}: "
            "its files are missing, or are those of an older state"
        )
    if term not in (0, checkpoint.term):
        raise CorruptData(
            f"the newest checkpoint of {name} ends with entry {checkpoint.index} of term {checkpoint.term}, but the "
            f"journal has that entry with term {term}: one of them is of another node"
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


def _load(
    store: CheckpointStore, name: str, kind: type[StateMachine]
) -> tuple[LogPosition, list[CheckpointId], RestoredState | None]:
    """Last entry of the newest checkpoint, the ids of all, and the state in it, None if there is no
    checkpoint. Blocks.
    """
    checkpoint, ids = store.load()
    if checkpoint is None:
        return LogPosition(0, 0), ids, None
    return checkpoint.id.position, ids, restored_state(name, kind, checkpoint.records)


async def recover_state_group(
    log: NodeLog,
    recovered: RecoveredNode,
    raft_group: int,
    name: str,
    machine: StateMachine,
    configuration: HardState,
    apply: Apply,
) -> StateReplica:
    """Recover a state group up to its newest checkpoint, which is read on the thread for files, and
    open its raft group: entries behind are applied as they are known to be committed.

    Args:
        log: the node's log, which is told of the group.
        recovered: contents of the data directory.
        machine: its state machine, empty.
        configuration: of a group that was never written.
        apply: applies its entries.

    Raises:
        DataDirectoryError, CorruptData: a file cannot be used, or entries are missing from the
            journal.
    """
    store = CheckpointStore(log.disk, log.directory / "state" / name)
    applied, ids, restored = await run_on(log.files, partial(_load, store, name, type(machine)))
    newest = None
    if restored is not None:
        if restored.configuration.voters:
            configuration = restored.configuration
        newest = Snapshot(applied.index, applied.term, conf_state_of(configuration))
    found = recovered.group(raft_group)
    check_reset(name, applied.index, found.reset)
    is_behind = not continues(found, applied)
    tail = [] if is_behind else [entry_of(record) for record in found.entries_after(applied.index)]
    group = recovered_group(log.driver.node_id, raft_group, found, applied, tail, configuration)
    replica = StateReplica(group, name, machine, store)
    if restored is not None:
        replica.take_over(restored)
    replica.set_checkpoints(ids, newest)
    if not group.has_peers:
        check_journal_reaches(name, applied, found.end, found.term(applied.index))
        await run_on(log.files, store.remove_parts)
    if is_behind:
        await run_on(log.files, store.make_durable)
        log.driver.snapshots.finish_install(group)
    log.driver.add(group)
    log.bind(replica, apply)
    return replica
