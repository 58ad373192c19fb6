"""Applied positions of partitions in the journal: the extent of their segments on stable storage.

Order that recovery relies on: an applied position is written after the segments were synced; a
segment is unlinked after an applied position that begins behind it is durable.
"""

from collections.abc import Callable, Mapping

from pixy.cluster.log.replica import Mark, PartitionReplica
from pixy.multiraft import RaftGroup
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions
from pixy.storage import Journal, PartitionLog, RecordKind, SyncedLog, UnitRecord


class AppliedPositionWriter:
    """Writes applied positions to the journal, and then lets go the segments below them.

    Args:
        journal: the node's journal.
        groups: every raft group of the node by id; grows with new topics.
        drop_segments: removes the segments of a partition below an offset.
        on_durable: called whenever applied positions have become durable.
    """

    def __init__(
        self,
        journal: Journal,
        groups: Mapping[int, RaftGroup],
        drop_segments: Callable[[PartitionReplica, int], None],
        on_durable: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._groups = groups
        self._drop_segments = drop_segments
        self._on_durable = on_durable

    def synced(self, synced: list[SyncedLog]) -> None:
        """Record in the journal that segments are on stable storage."""
        positions = []
        for entry in synced:
            assert isinstance(entry.mark, Mark)
            if not entry.mark.replica.deleted and not self._is_outdated(entry.log, entry.mark):
                positions.append(_applied_position(entry.mark, entry))
        if positions:
            self.write(positions)

    def _is_outdated(self, log: PartitionLog, mark: Mark) -> bool:
        """True if the replica has taken over a snapshot since, has another log by now, or has left
        its raft group.
        """
        group = self._groups.get(mark.replica.raft_group)
        if mark.replica.log is not log or group is None:
            return True
        position = group.position
        return position is not None and mark.applied.index < position.index

    def write(self, positions: list[AppliedPosition], then: Callable[[], None] | None = None) -> None:
        """Write applied positions; `then` is called once they are durable, before `on_durable`."""
        written: list[tuple[RaftGroup, AppliedPosition]] = []
        for position in positions:
            group = self._groups[position.raft_group]
            group.position = position
            written.append((group, position))

        def durable() -> None:
            for group, position in written:
                self._position_durable(group, position)
            if then is not None:
                then()
            self._on_durable()

        self._journal.append((positions_record(positions),), durable)

    def _position_durable(self, group: RaftGroup, position: AppliedPosition) -> None:
        group.durable_index = max(group.durable_index, position.index)
        group.position_file = self._journal.files[-1].number
        replica = group.application
        if isinstance(replica, PartitionReplica):
            replica.durable_publication = max(replica.durable_publication, position.publication)
            if replica.log.has_segments_below(position.log_begin_offset):
                self._drop_segments(replica, position.log_begin_offset)


def positions_record(positions: list[AppliedPosition]) -> UnitRecord:
    """The record of applied positions."""
    payload = AppliedPositions(positions=positions).SerializeToString()
    return (RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, 0, None, payload)


def _applied_position(mark: Mark, entry: SyncedLog) -> AppliedPosition:
    return AppliedPosition(
        raft_group=mark.replica.raft_group,
        index=mark.applied.index,
        term=mark.applied.term,
        log_begin_offset=entry.position.log_begin_offset,
        end_offset=entry.end_offset,
        segment_base_offset=entry.position.segment_base_offset,
        segment_bytes=entry.position.segment_bytes,
        publication=mark.publication,
        rows=mark.rows.encoded(),
        producers=mark.producers,
    )
