"""Data directories with impossible terms, as nodes of earlier releases wrote them, or with other
impossible records.
"""

import os
from pathlib import Path

from pixy.cluster.log.applied_positions import positions_record
from pixy.cluster.log.recovery import recover_node
from pixy.cluster.unsafe_recovery.offline_unit import write_unit
from pixy.cluster.unsafe_recovery.stopped_node import stopped_node
from pixy.multiraft.group_states import conf_state_of, hard_state_record
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import AppliedPosition, HardState
from pixy.raft import ConfState
from pixy.raft import HardState as RaftHardState
from pixy.storage import EntryType, RealDisk, RecordKind, ThreadWorker, UnitRecord

WORST = 2**64 - 1
"""The term of a message that nobody can follow."""


async def raise_terms(directory: Path, *raft_groups: int, term: int = WORST) -> None:
    """Write hard states with a term to the journal of a stopped node; of all groups if none is
    named.
    """
    disk = RealDisk()
    recovered = recover_node(disk, directory, os.urandom)
    records = []
    for raft_group, group in recovered.journal.groups.items():
        if group.hard_state is not None and (not raft_groups or raft_group in raft_groups):
            state = HardState.FromString(group.hard_state)
            storage = RaftStorage(conf_state_of(state), state.conf_index)
            storage.hard_state = RaftHardState(term, 0, state.commit)
            records.append(hard_state_record(raft_group, storage))
    try:
        await write_unit(disk, directory, recovered, records, ThreadWorker)
    finally:
        recovered.lock.close()


async def write_records(directory: Path, *records: UnitRecord) -> None:
    """Write records to the journal of a stopped node."""
    with stopped_node(RealDisk(), directory) as node:
        await node.write(records, ThreadWorker)


async def write_configuration(directory: Path, raft_group: int, configuration: ConfState) -> None:
    """Change the members of a raft group in the journal of a stopped node."""
    with stopped_node(RealDisk(), directory) as node:
        state = HardState.FromString(node.recovered.group(raft_group).hard_state or b"")
        storage = RaftStorage(configuration, state.conf_index)
        storage.hard_state = RaftHardState(state.term, state.vote, state.commit)
        await node.write([hard_state_record(raft_group, storage)], ThreadWorker)


async def write_entries(directory: Path, raft_group: int, index: int, *batches: bytes) -> None:
    """Write entries of term 1 with record batches to the journal of a stopped node."""
    records: list[UnitRecord] = [
        (RecordKind.ENTRY, EntryType.RECORD_BATCH, raft_group, at, 1, at, None, batch)
        for at, batch in enumerate(batches, index)
    ]
    await write_records(directory, *records)


async def write_position(directory: Path, raft_group: int, **change: int) -> None:
    """Change the applied position of a partition in the journal of a stopped node."""
    disk = RealDisk()
    recovered = recover_node(disk, directory, os.urandom)
    position = AppliedPosition()
    position.CopyFrom(recovered.journal.groups[raft_group].applied or AppliedPosition(raft_group=raft_group))
    for name, value in change.items():
        setattr(position, name, value)
    try:
        await write_unit(disk, directory, recovered, [positions_record([position])], ThreadWorker)
    finally:
        recovered.lock.close()
