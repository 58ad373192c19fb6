"""Recovery of the state groups from their checkpoints and the journal's entries after them."""

from pathlib import Path

import pytest

from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.replicas.state_groups import GROUPS_COUNT, StateGroups
from pixy.cluster.state.groups import FIRST_GROUPS_GROUP
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.publications import SINKS_GROUP
from pixy.entry_ids import ProposalId
from pixy.errors import CorruptData
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import split_checkpoint
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import Entry
from pixy.storage import CheckpointStore, RecoveredGroup
from tests.cluster.node_logs import open_log
from tests.cluster.nodes import Cluster, Sizes
from tests.cluster.staging import finished, piece_of, publish, stage
from tests.fakes.disk import RecordingDisk


async def made(directory: Path, checkpoint_entries: int) -> None:
    """A node's directory with topics, offsets and a sink."""
    async with Cluster(directory, Sizes(checkpoint_entries=checkpoint_entries)).running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.create_topic("gone")
        await cluster.append(b"1", b"2", b"3")
        for offset in (1, 2, 3):
            await cluster.commit(offset)
        await cluster.commit(0, topic="gone")
        await stage(cluster, "stage", piece_of(cluster, b"4"))
        await publish(cluster, 7, "stage")
        await finished(cluster)


async def restored(directory: Path, also: int = 0) -> tuple[StateGroups, NodeLog]:
    """The state groups of a directory, with everything in the journal applied, and their log.

    Args:
        also: another raft group that the journal has.
    """
    log, recovered, *_ = open_log(directory)
    if also:
        recovered.journal.groups[also] = RecoveredGroup(also)
    state = StateGroups()
    await state.restore(recovered, log, StateReplica.apply)
    return state, log


def apply(group: RaftGroup, entry: Entry) -> object:
    assert isinstance(group.application, StateReplica)
    return group.application.apply(entry)


@pytest.mark.parametrize("checkpoint_entries", [1000, 2, 1])
async def test_a_checkpoint_and_the_journal_after_it_are_the_whole_state(
    tmp_path: Path, checkpoint_entries: int
) -> None:
    await made(tmp_path, checkpoint_entries)
    state, log = await restored(tmp_path)
    groups = range(FIRST_GROUPS_GROUP, FIRST_GROUPS_GROUP + GROUPS_COUNT)
    assert sorted(log.driver.groups) == [METADATA_GROUP, *groups, SINKS_GROUP]
    assert [len(topic.raft_groups) for topic in state.metadata.topics.values()] == [2, 1]
    topic_id = state.metadata.topics["topic"].topic_id
    committed = state.offsets_of("group").committed("group", topic_id)
    assert {partition: commit.offset for partition, commit in committed.items()} == {0: 3}
    assert state.sinks.sinks["sink"].last_epoch == 7
    for group in log.driver.groups.values():
        assert not group.has_tail
        assert bool(group.hard_state_file) is (group.applied_index > 0)


async def test_a_checkpoint_has_the_result_of_its_last_entry(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data", Sizes(checkpoint_entries=1)).running() as cluster:
        await cluster.create_topic()
        for offset in (1, 2, 3):
            await cluster.commit(offset)
        await cluster.settle()
        group = cluster.node.state_groups.groups[0].group
        last = ProposalId(1, 1, 3)
        assert group.rows.judge(last) == 0
    checkpoint, _ = CheckpointStore(RecordingDisk(), tmp_path / "data/state/groups-0").load()
    assert checkpoint is not None
    assert checkpoint.id.end_offset == group.applied_index
    state, others = split_checkpoint(checkpoint.records)
    assert DedupTable(state.rows).judge(last) == 0
    assert list(state.configuration.voters) == [1]
    assert others


async def test_deleted_topics_with_offsets_are_found(tmp_path: Path) -> None:
    await made(tmp_path, 1000)
    state, _ = await restored(tmp_path)
    assert state.deleted_topic_ids() == []
    # As if the process ended between the deletion and its commands to the other groups.
    gone = state.metadata.topics.pop("gone")
    assert state.deleted_topic_ids() == [gone.topic_id]


async def test_peers_come_when_metadata_is_restored_and_before_everything_else(tmp_path: Path) -> None:
    await made(tmp_path, 1)
    log, recovered, *_ = open_log(tmp_path)
    state = StateGroups()
    seen: list[tuple[list[int], list[str]]] = []

    async def start_peers() -> None:
        seen.append((sorted(log.driver.groups), list(state.metadata.topics)))

    await state.restore(recovered, log, StateReplica.apply, start_peers)
    assert seen == [([METADATA_GROUP], ["topic", "gone"])]
    assert len(log.driver.groups) == 2 + GROUPS_COUNT
    for group in log.driver.groups.values():
        assert group.leads, "a start among others asks each group what is committed"


async def test_a_start_alone_asks_only_groups_with_entries_behind_their_checkpoints(tmp_path: Path) -> None:
    await made(tmp_path, 1)
    _, log = await restored(tmp_path)
    assert not any(group.leads for group in log.driver.groups.values())


async def test_a_raft_group_that_was_never_created_is_refused(tmp_path: Path) -> None:
    await made(tmp_path, 1000)
    with pytest.raises(CorruptData, match="raft group 1003, but the entry that created it is missing"):
        await restored(tmp_path, also=1003)
