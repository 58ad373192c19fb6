"""Results of the last proposals after a start: as of the same entry as the state beside them."""

from pathlib import Path

import pytest

from pixy.entry_ids import ProposalId
from pixy.multiraft.dedup_table import DedupTable
from pixy.records import TopicPartition
from tests.cluster.nodes import Cluster, Sizes


def value_of(rows: DedupTable, sequence: int) -> object:
    """The kept result of a proposal of the first start."""
    return rows.judge(ProposalId(node_id=1, incarnation=1, sequence=sequence))


@pytest.mark.parametrize("checkpoint_entries", [1, 2, 1000])
async def test_a_checkpoint_has_the_result_of_its_last_entry(tmp_path: Path, checkpoint_entries: int) -> None:
    async with Cluster(tmp_path, Sizes(checkpoint_entries=checkpoint_entries)).running() as cluster:
        for name in ("a", "b", "c"):
            await cluster.create_topic(name)
    async with Cluster(tmp_path).running() as again:
        rows = again.node.state_groups.metadata_replica.rows
        assert [value_of(rows, sequence) for sequence in (2, 3, 4)] == [0, 0, 0]


@pytest.mark.parametrize("max_unapplied_bytes", [10, 1 << 20])
async def test_an_applied_position_has_the_result_of_its_last_entry(
    tmp_path: Path, max_unapplied_bytes: int
) -> None:
    async with Cluster(tmp_path, Sizes(max_unapplied_bytes=max_unapplied_bytes)).running() as cluster:
        await cluster.create_topic("topic")
        await cluster.append(b"1", b"2", b"3")
    async with Cluster(tmp_path).running() as again:
        replica = again.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        assert [value_of(replica.rows, sequence) for sequence in (1, 2, 3)] == [0, 1, 2]
