"""Snapshots of partitions: what a leader offers, and what a replica makes of it."""

from pathlib import Path

import pytest

from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.cluster.log.partition_snapshots import describe, has_records, is_written, position_of, take_over
from pixy.cluster.log.replica import PartitionReplica
from pixy.entry_ids import INDEX_MAX, LogPosition, ProposalId
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import AppliedPosition, PartitionDescriptor, ProposerRow
from pixy.raft import ConfState, Entry, Snapshot
from pixy.records import TopicPartition
from tests.fakes.disk import RecordingDisk
from tests.storage.logs import partition_log

ALL = ConfState((1, 2, 3))


def replica_of(path: Path, *, end: int, applied: int, start: int = 0) -> PartitionReplica:
    """A replica with an applied entry of term 2, and a log with `end` records from entry `start`
    on.
    """
    replica = PartitionReplica(1000, TopicPartition("topic", 0), partition_log(RecordingDisk(), path))
    group = replica.group = RaftGroup(1000, RaftStorage(ALL), 1)
    group.application = replica
    group.storage.append([Entry(2, index + 1) for index in range(applied)])
    group.applied_term, group.applied_index = 2, applied
    group.storage.compact(start)
    replica.log.end_offset = end
    return replica


def group_of(replica: PartitionReplica) -> RaftGroup:
    assert replica.group is not None
    return replica.group


def descriptor(snapshot: Snapshot | None) -> PartitionDescriptor:
    assert snapshot is not None
    return PartitionDescriptor.FromString(snapshot.data)


def offer(end: int, *, index: int = 20, begin: int = 0, publication: int = 0) -> Snapshot:
    rows = DedupTable()
    rows.record(ProposalId(1, 1, 7), 5)
    data = PartitionDescriptor(
        log_begin_offset=begin, end_offset=end, publication=publication, rows=rows.snapshot().encoded()
    )
    return Snapshot(index, 3, ALL, data.SerializeToString())


def position(replica: PartitionReplica, index: int, end: int) -> AppliedPosition:
    """The newest applied position of a replica."""
    made = AppliedPosition(
        raft_group=1000, index=index, term=2, end_offset=end, segment_base_offset=4, segment_bytes=99
    )
    group_of(replica).position = made
    return made


# --- leader ---------------------------------------------------------------------------------------


def test_a_log_that_was_never_cut_is_not_described(tmp_path: Path) -> None:
    assert describe(group_of(replica_of(tmp_path, end=5, applied=9))) is None


def test_the_applied_state_is_described(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=5, applied=9, start=4)
    replica.log.begin_offset, replica.publication = 2, 3
    replica.rows.record(ProposalId(1, 1, 7), 5)
    snapshot = describe(group_of(replica))
    assert snapshot is not None
    assert (snapshot.index, snapshot.term, snapshot.conf_state) == (9, 2, ALL)
    found = descriptor(snapshot)
    assert (found.log_begin_offset, found.end_offset, found.publication) == (2, 5, 3)
    assert DedupTable(found.rows).judge(ProposalId(1, 1, 7)) == 5


def test_an_empty_partition_is_described_too(tmp_path: Path) -> None:
    snapshot = describe(group_of(replica_of(tmp_path, end=0, applied=9, start=4)))
    assert snapshot is not None
    assert has_records(replica_of(tmp_path, end=0, applied=2), snapshot)


def test_the_state_at_the_begin_of_the_log_comes_before_the_applied_one(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=9, applied=9)
    position(replica, index=6, end=5)
    group_of(replica).compact(4)
    position(replica, index=8, end=8)
    group_of(replica).compact(5)
    snapshot = describe(group_of(replica))
    assert snapshot is not None
    assert (snapshot.index, descriptor(snapshot).end_offset) == (6, 5)
    group_of(replica).compact(7)
    snapshot = describe(group_of(replica))
    assert snapshot is not None
    assert (snapshot.index, descriptor(snapshot).end_offset) == (8, 8)


def test_a_state_before_the_newest_configuration_is_not_described(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=9, applied=9)
    position(replica, index=6, end=5)
    group_of(replica).compact(4)
    group_of(replica).storage.conf_index = 7
    snapshot = describe(group_of(replica))
    assert snapshot is not None
    assert snapshot.index == 9
    # Its change is being applied: the configuration is ahead of the state.
    group_of(replica).storage.conf_index = 10
    assert describe(group_of(replica)) is None


def test_an_unknown_partition_is_not_described(tmp_path: Path) -> None:
    group = group_of(replica_of(tmp_path, end=9, applied=9, start=4))
    group.application = None
    assert describe(group) == Snapshot(4, 2, ALL)


# --- follower -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "has"), [(4, False), (5, True), (6, False)])
def test_a_replica_has_all_records_if_it_ends_where_the_leader_does(
    tmp_path: Path, end: int, has: bool
) -> None:
    assert has_records(replica_of(tmp_path, end=end, applied=3), offer(5)) is has


@pytest.mark.parametrize("data", [b"", b"\xff", PartitionDescriptor(publication=3).SerializeToString()])
def test_a_snapshot_without_a_descriptor_says_nothing(tmp_path: Path, data: bytes) -> None:
    assert not has_records(replica_of(tmp_path, end=0, applied=3), Snapshot(20, 3, ALL, data))


def test_a_log_that_is_not_written_any_more_waits_for_a_copy(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=5, applied=3)
    replica.condition = PartitionCondition.UNREADABLE
    assert has_records(replica, offer(5))
    replica.condition = PartitionCondition.UNWRITABLE
    assert not has_records(replica, offer(5))


def test_all_records_have_to_be_in_synced_segments(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=5, applied=3)
    assert not is_written(replica)
    position(replica, index=2, end=4)
    assert not is_written(replica)
    position(replica, index=3, end=5)
    assert is_written(replica)
    assert is_written(replica_of(tmp_path, end=0, applied=3))


def test_a_position_that_is_taken_over_has_the_own_segments_and_the_state_of_the_leader(
    tmp_path: Path,
) -> None:
    replica = replica_of(tmp_path, end=5, applied=3)
    position(replica, index=3, end=5)
    taken = position_of(replica, offer(5, begin=4, publication=2))
    assert (taken.raft_group, taken.index, taken.term) == (1000, 20, 3)
    assert (taken.log_begin_offset, taken.end_offset, taken.publication) == (4, 5, 2)
    assert (taken.segment_base_offset, taken.segment_bytes) == (4, 99)
    take_over(replica, taken)
    assert (replica.log.begin_offset, replica.publication, replica.durable_publication) == (4, 2, 2)
    assert replica.rows.judge(ProposalId(1, 1, 7)) == 5


@pytest.mark.parametrize("begin", [5, 9])
def test_a_log_whose_records_are_all_removed_is_empty(tmp_path: Path, begin: int) -> None:
    replica = replica_of(tmp_path, end=5, applied=3)
    position(replica, index=3, end=5)
    taken = position_of(replica, offer(5, begin=begin))
    assert (taken.log_begin_offset, taken.segment_base_offset, taken.segment_bytes) == (5, 5, 0)


def test_the_begin_of_a_log_does_not_go_back(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=5, applied=3)
    replica.log.begin_offset = 3
    position(replica, index=3, end=5)
    assert position_of(replica, offer(5, begin=1)).log_begin_offset == 3


def test_a_replica_that_has_taken_over_a_position_is_whole(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=0, applied=3)
    replica.needs_copy = True
    take_over(replica, position_of(replica, offer(0)))
    assert not replica.needs_copy
    assert group_of(replica).storage.start == LogPosition(0, 0)


# --- descriptors that no correct node writes ------------------------------------------------------


def test_an_impossible_publication_is_no_descriptor(tmp_path: Path) -> None:
    replica = replica_of(tmp_path, end=5, applied=4)
    assert has_records(replica, offer(5, publication=INDEX_MAX))
    assert not has_records(replica, offer(5, publication=INDEX_MAX + 1))


@pytest.mark.parametrize("sequence", [INDEX_MAX + 1, 2**63, 2**64 - 1])
def test_results_of_impossible_proposals_are_not_taken_over(tmp_path: Path, sequence: int) -> None:
    replica = replica_of(tmp_path, end=5, applied=4)
    found = position(replica, 4, 5)
    found.rows.append(ProposerRow(node_id=9, incarnation=1, sequences=[3, sequence], values=[4, 4]))
    take_over(replica, found)
    assert replica.rows.judge(ProposalId(9, 1, 3)) == 4
    assert replica.rows.snapshot().encoded()[0].sequences == [3]
