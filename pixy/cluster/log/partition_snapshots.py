"""Snapshots of partitions: a position with a descriptor of the state there, and no records.

A replica that was away may lack entries that the journal of its leader has lost, and still have
every record: entries of elections, changes of the configuration and commands take no offsets. The
leader describes its partition at a position (`PartitionDescriptor`). A replica whose committed
records end at the same offset has the same records, because committed records of one partition are
the same everywhere. It takes over the position; all others need a copy (`copy_fetching`).

The position is the oldest one that is exact and not below the begin of the leader's log: whoever
has the records up to there gets the rest from the journal. Exact are the applied state, and the
applied position that was the newest when the journal lost its last file.

Taking over is one unit of the journal: log reset, hard state, applied position. The position says
where the synced segments end, so it is written only once an applied position has all records:

    the replica's log         and its newest applied position    the replica
    ------------------------  ---------------------------------  -------------------------------
    ends at the offset        has all of it                      takes over the position
    ends at the offset        has less: segments are not synced  waits for the next one
    ends elsewhere, or is     any                                needs a copy
    not written any more

Pieces of stages that the lost entries name are in the descriptor, unless their stages are gone. A
replica has them on its disk before it takes over the position, or has a copy: it confirms the
entries by that (`sideloading`).

The road not taken: to keep such entries of every group in the journal, for replicas that may never
come back.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog
from google.protobuf.message import DecodeError

from pixy.cluster.log.applied_positions import positions_record
from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.cluster.log.replica import PartitionReplica
from pixy.entry_ids import INDEX_MAX
from pixy.multiraft import DedupTable, RaftGroup, Snapshots
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import AppliedPosition, PartitionDescriptor, StagedPiece
from pixy.raft import Snapshot
from pixy.storage import UnitRecord

log = structlog.get_logger(__name__)

_OFFSET_MAX = 2**63 - 1


class Takeovers:
    """Positions of leaders that replicas take over.

    Args:
        snapshots: those of the node.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        # Positions that replicas take over once their segments are synced.
        self._unwritten: dict[RaftGroup, Snapshot] = {}

    def take(self, group: RaftGroup, snapshot: Snapshot) -> bool:
        """A leader offers a position to the replica of a partition: take it over, or do so as soon
        as all records are in synced segments.

        Returns:
            False if the replica lacks records.
        """
        replica = group.application
        assert isinstance(replica, PartitionReplica)
        if not has_records(replica, snapshot):
            self._unwritten.pop(group, None)
            return False
        if not is_written(replica) or group.held is not None:
            self._unwritten[group] = snapshot
        elif self._snapshots.arrived(group, snapshot):
            log.info(
                "a replica has all records, and takes over the position of its leader",
                topic=replica.partition.topic,
                partition=replica.partition.partition,
                entry=snapshot.index,
            )
        return True

    def positions_durable(self) -> None:
        """Applied positions have become durable: some replicas may have waited for that."""
        unwritten, self._unwritten = self._unwritten, {}
        for group, snapshot in unwritten.items():
            if self._snapshots.awaits(group, snapshot) and not self.take(group, snapshot):
                self._snapshots.failed(group, snapshot, silently=True)


def describe(
    group: RaftGroup, staged_pieces: Callable[[int], Iterable[StagedPiece]] = lambda _: ()
) -> Snapshot | None:
    """The snapshot that a leader offers, None if its log was never cut, or within a change of the
    configuration.

    Without data if the state is not known: it tells a follower that it is behind.

    Args:
        staged_pieces: the pieces of stages that a raft group has, as far as they are needed.
    """
    snapshot = _described_state(group)
    if snapshot is None or not snapshot.data:
        return snapshot
    # Fields of a message that follow it are part of it.
    pieces = PartitionDescriptor(pieces=staged_pieces(group.raft_group)).SerializeToString()
    return replace(snapshot, data=snapshot.data + pieces)


def _described_state(group: RaftGroup) -> Snapshot | None:
    """The snapshot of a leader, without pieces."""
    storage, replica = group.storage, group.application
    start = storage.start
    if not start.index:
        return None
    exact = group.begin
    if exact is not None and exact.index >= max(start.index, storage.conf_index):
        return Snapshot(exact.index, exact.term, storage.conf_state, _described(exact))
    if storage.conf_index > group.applied_index:
        return None
    if not isinstance(replica, PartitionReplica):
        return Snapshot(start.index, start.term, storage.conf_state)
    return applied_state(replica)[0]


def applied_state(replica: PartitionReplica) -> tuple[Snapshot, PartitionDescriptor]:
    """The state of a partition as it is applied here."""
    group = replica.group
    assert group is not None
    descriptor = PartitionDescriptor(
        log_begin_offset=replica.log.begin_offset,
        end_offset=replica.log.end_offset,
        publication=replica.publication,
        rows=replica.rows.snapshot().encoded(),
    )
    snapshot = Snapshot(
        group.applied_index, group.applied_term, group.storage.conf_state, descriptor.SerializeToString()
    )
    return snapshot, descriptor


def _described(position: AppliedPosition) -> bytes:
    return PartitionDescriptor(
        log_begin_offset=position.log_begin_offset,
        end_offset=position.end_offset,
        publication=position.publication,
        rows=position.rows,
    ).SerializeToString()


def has_records(replica: PartitionReplica, snapshot: Snapshot) -> bool:
    """True if a replica has every record up to a snapshot, and can go on behind it."""
    descriptor = descriptor_of(snapshot)
    if descriptor is None or replica.condition is PartitionCondition.UNWRITABLE:
        return False
    return replica.log.end_offset == descriptor.end_offset


def is_written(replica: PartitionReplica) -> bool:
    """True if the newest applied position has every record of a replica."""
    assert replica.group is not None
    position = replica.group.position
    return replica.log.end_offset == (0 if position is None else position.end_offset)


def position_of(replica: PartitionReplica, snapshot: Snapshot) -> AppliedPosition:
    """The applied position of a replica that takes over a snapshot's: its own, at another entry."""
    assert replica.group is not None
    descriptor = descriptor_of(snapshot)
    assert descriptor is not None
    assert has_records(replica, snapshot)
    assert is_written(replica)
    position = AppliedPosition()
    if replica.group.position is not None:
        position.CopyFrom(replica.group.position)
    position.raft_group, position.index, position.term = replica.raft_group, snapshot.index, snapshot.term
    position.log_begin_offset = max(
        replica.log.begin_offset, min(descriptor.log_begin_offset, position.end_offset)
    )
    if position.log_begin_offset == position.end_offset:
        position.segment_base_offset, position.segment_bytes = position.end_offset, 0
    position.publication = descriptor.publication
    del position.rows[:]
    position.rows.extend(descriptor.rows)
    return position


def copied_position(replica: PartitionReplica, snapshot: Snapshot) -> AppliedPosition:
    """The applied position of a replica that has a copy of a leader's, but for the segments."""
    descriptor = descriptor_of(snapshot)
    assert descriptor is not None
    return AppliedPosition(
        raft_group=replica.raft_group,
        index=snapshot.index,
        term=snapshot.term,
        log_begin_offset=descriptor.log_begin_offset,
        end_offset=descriptor.end_offset,
        publication=descriptor.publication,
        rows=descriptor.rows,
    )


def position_records(group: RaftGroup, snapshot: Snapshot) -> list[UnitRecord]:
    """Records that are in one unit with a log reset: the applied position of a partition."""
    replica = group.application
    if not isinstance(replica, PartitionReplica):
        return []
    group.position = position_of(replica, snapshot)
    return [positions_record([group.position])]


def take_over(replica: PartitionReplica, position: AppliedPosition) -> None:
    """A replica's state is that of `position_of`, which is durable."""
    replica.rows = DedupTable(position.rows)
    replica.publication = replica.durable_publication = position.publication
    replica.log.move_begin(position.log_begin_offset)
    replica.needs_copy = False
    replica.wake()


def descriptor_of(snapshot: Snapshot) -> PartitionDescriptor | None:
    """The descriptor of a snapshot, None if it has none that a correct node writes."""
    try:
        descriptor = parsed(PartitionDescriptor, snapshot.data)
    except DecodeError:
        return None
    is_possible = (
        descriptor.HasField("end_offset")
        and descriptor.log_begin_offset >= 0
        and 0 <= descriptor.end_offset < _OFFSET_MAX
        and descriptor.publication <= INDEX_MAX
    )
    return descriptor if is_possible else None
