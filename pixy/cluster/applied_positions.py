"""Applied positions of partitions in the journal: the extent of their segments on stable storage.

Order that recovery relies on: an applied position is written after the segments were synced; a
segment is unlinked after an applied position that begins behind it is durable.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pixy.cluster.replica import PartitionReplica, Replica
from pixy.log_position import LogPosition
from pixy.proto.state_pb2 import AppliedPosition, AppliedPositions
from pixy.storage import Journal, RecordKind, SyncedLog

__all__ = ["AppliedPositionWriter", "Mark"]


class Mark(NamedTuple):
    """Progress of a partition, returned by the log writer once its segments are synced up to
    `applied`; `publication` is the last one in them.
    """

    replica: PartitionReplica
    applied: LogPosition
    publication: int


class AppliedPositionWriter:
    """Writes applied positions to the journal, and then lets go the segments below them.

    Args:
        journal: the node's journal.
        replicas: every raft group of the node by id; grows with new topics.
        drop_segments: removes the segments of a partition below an offset.
        on_durable: called whenever applied positions have become durable.
    """

    def __init__(
        self,
        journal: Journal,
        replicas: Mapping[int, Replica],
        drop_segments: Callable[[PartitionReplica, int], None],
        on_durable: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._replicas = replicas
        self._drop_segments = drop_segments
        self._on_durable = on_durable

    def synced(self, synced: list[SyncedLog]) -> None:
        """Record in the journal that segments are on stable storage."""
        positions = []
        for entry in synced:
            assert isinstance(entry.mark, Mark)
            if not entry.mark.replica.deleted:
                positions.append(_applied_position(entry.mark, entry))
        if positions:
            self.write(positions)

    def write(self, positions: list[AppliedPosition], then: Callable[[], None] | None = None) -> None:
        """Write applied positions; `then` is called once they are durable, before `on_durable`."""
        written: list[tuple[PartitionReplica, AppliedPosition]] = []
        for position in positions:
            replica = self._replicas[position.raft_group]
            assert isinstance(replica, PartitionReplica)
            replica.position = position
            written.append((replica, position))

        def durable() -> None:
            for replica, position in written:
                self._position_durable(replica, position)
            if then is not None:
                then()
            self._on_durable()

        payload = AppliedPositions(positions=positions).SerializeToString()
        self._journal.append([(RecordKind.APPLIED_POSITIONS, 0, 0, 0, 0, 0, None, payload)], durable)

    def _position_durable(self, replica: PartitionReplica, position: AppliedPosition) -> None:
        replica.durable_index = max(replica.durable_index, position.index)
        replica.durable_publication = max(replica.durable_publication, position.publication)
        replica.position_file = self._journal.files[-1].number
        if replica.log.has_segments_below(position.log_begin_offset):
            self._drop_segments(replica, position.log_begin_offset)


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
    )
