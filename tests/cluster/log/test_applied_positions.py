"""Applied positions of partitions: what of the log writer's reports is recorded."""

from pathlib import Path
from typing import Any, cast

from pixy.cluster.log.applied_positions import AppliedPositionWriter
from pixy.cluster.log.replica import PartitionReplica
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState
from pixy.records import TopicPartition
from pixy.storage import Journal, SyncedLog
from pixy.storage.partition import SyncedPosition
from tests.fakes.disk import RecordingDisk
from tests.storage.logs import partition_log

ALL = ConfState((1, 2, 3))


class Units:
    """A journal that keeps its units."""

    def __init__(self) -> None:
        self.units: list[Any] = []

    def append(self, records: Any, token: Any) -> None:
        self.units.append(records)


def replica_of(path: Path) -> PartitionReplica:
    replica = PartitionReplica(1000, TopicPartition("topic", 0), partition_log(RecordingDisk(), path))
    replica.group = RaftGroup(1000, RaftStorage(ALL), 1)
    return replica


def test_nothing_is_recorded_of_a_replica_that_has_left_its_group_or_has_come_back(tmp_path: Path) -> None:
    """In its next life the position would be of files that are not there."""
    journal, groups = Units(), dict[int, RaftGroup]()
    writer = AppliedPositionWriter(cast(Journal, journal), groups, lambda *_: None, lambda: None)
    replica = replica_of(tmp_path / "topic-0")
    synced = SyncedLog(replica.log, replica.mark(), 5, SyncedPosition(0, 0, 99))
    writer.synced([synced])
    assert journal.units == []
    groups[1000] = RaftGroup(1000, RaftStorage(ConfState()), 1)
    replica.log = partition_log(RecordingDisk(), tmp_path / "next")
    writer.synced([synced])
    assert journal.units == []
    writer.synced([SyncedLog(replica.log, replica.mark(), 5, SyncedPosition(0, 0, 99))])
    assert len(journal.units) == 1
