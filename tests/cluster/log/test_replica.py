"""Applications of raft groups: offsets of what is proposed to a partition, and the checkpoints and
results of a state group.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.log.checkpoint_state import restored_state
from pixy.cluster.log.replica import PartitionReplica, StateReplica
from pixy.cluster.state import answer_of
from pixy.entry_ids import LogPosition, ProposalId
from pixy.errors import BatchesDivided, OutOfOrderSequence, PixyError
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import PartitionCommand, PublishedPart, PublishParts, SetLogBeginOffset
from pixy.raft import ConfState, Entry, Snapshot
from pixy.records import TopicPartition, producer_batch, read_header, split_batches
from pixy.storage import CheckpointId, CheckpointStore, EntryType
from tests.fakes.batches import batch_of, batch_of_producer
from tests.fakes.disk import RecordingDisk
from tests.storage.logs import append, partition_log

BATCH, BATCHES, COMMAND = EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES, EntryType.COMMAND


def new_batch(records: int = 1) -> bytearray:
    return bytearray(batch_of(*[b"value"] * records))


def publish(publication: int, *records: int, predecessor: int = 0) -> bytes:
    """A command that publishes parts with so many records."""
    parts = [PublishedPart(records=count) for count in records]
    published = PublishParts(publication=publication, parts=parts, predecessor=predecessor)
    return PartitionCommand(publish_parts=published).SerializeToString()


def places_in(payload: bytes | bytearray) -> list[tuple[int, int]]:
    """Base offset and leader epoch of each batch."""
    headers = [read_header(batch) for batch in split_batches(memoryview(payload))]
    return [(header.base_offset, header.leader_epoch) for header in headers]


# --- partitions -----------------------------------------------------------------------------------


@pytest.fixture
def leading(tmp_path: Path) -> PartitionReplica:
    """A partition with 5 applied records and publication 2, that leads without a tail."""
    replica = PartitionReplica(1000, TopicPartition("topic", 0), partition_log(RecordingDisk(), tmp_path))
    append(replica.log, new_batch(5))
    replica.publication = 2
    replica.lead([])
    return replica


def test_a_batch_gets_the_next_offset_and_the_term(leading: PartitionReplica) -> None:
    stamped = [leading.stamp(BATCH, new_batch(records), 7)[1] for records in (3, 1, 1)]
    assert [places_in(payload) for payload in stamped] == [[(5, 7)], [(8, 7)], [(9, 7)]]


def test_a_batch_is_stamped_in_place(leading: PartitionReplica) -> None:
    payload = new_batch()
    assert leading.stamp(BATCH, payload, 7)[1] is payload


def test_every_batch_of_an_entry_gets_its_offset(leading: PartitionReplica) -> None:
    payload = new_batch(2) + new_batch() + new_batch(4)
    assert places_in(leading.stamp(BATCHES, payload, 7)[1]) == [(5, 7), (7, 7), (8, 7)]
    assert leading.proposed_end == 12


def test_batches_behind_a_publication_begin_at_its_end(leading: PartitionReplica) -> None:
    command = publish(3, 10, 20)
    assert leading.stamp(COMMAND, command, 7)[1] is command
    assert places_in(leading.stamp(BATCH, new_batch(), 7)[1]) == [(35, 7)]


def test_a_publication_that_is_proposed_again_takes_no_offsets(leading: PartitionReplica) -> None:
    for publication in (2, 3, 3):
        leading.stamp(COMMAND, publish(publication, 10), 7)
    assert (leading.proposed_end, leading.proposed_publication) == (15, 3)


def test_a_publication_without_its_predecessor_takes_no_offsets(leading: PartitionReplica) -> None:
    leading.stamp(COMMAND, publish(4, 10, predecessor=3), 7)
    assert (leading.proposed_end, leading.proposed_publication) == (5, 2)
    leading.stamp(COMMAND, publish(3, 10, predecessor=1), 7)
    leading.stamp(COMMAND, publish(4, 10, predecessor=3), 7)
    assert (leading.proposed_end, leading.proposed_publication) == (25, 4)


def test_other_commands_and_empty_entries_take_no_offsets(leading: PartitionReplica) -> None:
    other = PartitionCommand(set_log_begin_offset=SetLogBeginOffset(offset=4)).SerializeToString()
    assert leading.stamp(COMMAND, other, 7)[1] is other
    assert leading.stamp(EntryType.EMPTY, b"", 7)[1] == b""
    assert leading.proposed_end == 5


def test_a_new_leader_proposes_behind_its_tail(leading: PartitionReplica) -> None:
    tail = [
        Entry(6, 6, data=leading.stamp(BATCH, new_batch(2), 6)[1], kind=BATCH),
        Entry(6, 7, data=leading.stamp(BATCHES, new_batch() + new_batch(3), 6)[1], kind=BATCHES),
        Entry(6, 8, data=publish(3, 100), kind=COMMAND),
        Entry(6, 9),
    ]
    leading.lead(tail)
    assert (leading.proposed_end, leading.proposed_publication) == (111, 3)
    leading.lead([])
    assert (leading.proposed_end, leading.proposed_publication) == (5, 2), "the tail was replaced"


def from_producer(sequence: int, *, records: int = 1, producer_id: int = 7) -> bytearray:
    return batch_of_producer(producer_id, 0, sequence, *[b"value"] * records)


def answer(stamped: tuple[EntryType, bytes | bytearray]) -> int | PixyError:
    """The answer that takes the place of a batch."""
    kind, payload = stamped
    assert kind is COMMAND
    return answer_of(PartitionCommand.FromString(bytes(payload)).answered_batch)


def test_a_batch_of_a_producer_gets_its_place_once(leading: PartitionReplica) -> None:
    for sequence, records in ((0, 2), (2, 1)):
        kind, payload = leading.stamp(BATCH, from_producer(sequence, records=records), 7)
        assert (kind, places_in(payload)) == (BATCH, [(5 + sequence, 7)])
    assert answer(leading.stamp(BATCH, from_producer(0, records=2), 7)) == 5
    assert answer(leading.stamp(BATCH, from_producer(2), 7)) == 7
    refused = answer(leading.stamp(BATCH, from_producer(4), 7))
    assert isinstance(refused, OutOfOrderSequence)
    assert "expected is 3" in str(refused)
    assert leading.proposed_end == 8
    assert places_in(leading.stamp(BATCH, new_batch(), 7)[1]) == [(8, 7)]


def test_batches_of_a_shared_entry_are_taken_together_or_not_at_all(leading: PartitionReplica) -> None:
    both = from_producer(0) + new_batch(2) + from_producer(1)
    kind, payload = leading.stamp(BATCHES, both, 7)
    assert (kind, places_in(payload)) == (BATCHES, [(5, 7), (6, 7), (8, 7)])
    mixed = new_batch() + from_producer(2) + from_producer(1)
    assert isinstance(answer(leading.stamp(BATCHES, mixed, 7)), BatchesDivided)
    assert isinstance(answer(leading.stamp(BATCHES, new_batch() + from_producer(1), 7)), BatchesDivided)
    assert answer(leading.stamp(BATCH, from_producer(1), 7)) == 8
    assert leading.proposed_end == 9


def test_a_new_leader_knows_the_producers_of_its_tail(leading: PartitionReplica) -> None:
    tail = [
        Entry(6, 6, data=leading.stamp(BATCH, from_producer(0), 6)[1], kind=BATCH),
        Entry(6, 7, data=leading.stamp(BATCHES, new_batch() + from_producer(1), 6)[1], kind=BATCHES),
    ]
    leading.lead(tail)
    assert answer(leading.stamp(BATCH, from_producer(1), 7)) == 7
    leading.lead(tail[:1])
    assert places_in(leading.stamp(BATCH, from_producer(1), 7)[1]) == [(6, 7)], "the tail was replaced"


def test_a_mark_keeps_the_producers_once(leading: PartitionReplica) -> None:
    leading.group = RaftGroup(1000, RaftStorage(ConfState((1,))), 1)
    assert not leading.mark().producers
    leading.stamp(BATCH, from_producer(0), 7)
    assert not leading.mark().producers, "nothing is applied"
    leading.known_producers.apply(producer_batch(from_producer(0)), 1000)
    assert leading.mark().producers
    assert not leading.log.is_keeping_due(1)
    leading.log.move_begin(5)
    assert not leading.log.is_keeping_due(1)
    append(leading.log, new_batch())
    leading.log.move_begin(6)
    assert leading.log.is_keeping_due(1), "batches are gone that a start would read"


def test_a_mark_is_the_state_of_its_moment(leading: PartitionReplica) -> None:
    leading.group = group = RaftGroup(1000, RaftStorage(ConfState((1,))), 1)
    group.applied_term, group.applied_index = 3, 9
    leading.rows.record(ProposalId(1, 1, 1), 4)
    mark = leading.mark()
    leading.rows.record(ProposalId(1, 1, 2), 5)
    group.applied_index, leading.publication = 10, 3
    assert (mark.applied, mark.publication) == (LogPosition(3, 9), 2)
    assert [list(row.sequences) for row in mark.rows.encoded()] == [[1]]


async def test_an_append_wakes_every_waiting_fetch_once(leading: PartitionReplica) -> None:
    waiters = {asyncio.get_running_loop().create_future() for _ in range(2)}
    leading.waiters = dict.fromkeys(waiters)
    leading.wake()
    leading.wake()
    assert all(waiter.done() for waiter in waiters)
    assert leading.waiters is None


# --- state groups ---------------------------------------------------------------------------------


class Commands:
    """A state machine that keeps its commands."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, payload: bytes, term: int = 0) -> Any:
        self.commands.append(payload)
        return len(self.commands)

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        return [(b"%d" % number, command) for number, command in enumerate(self.commands)]

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.commands = [value for _, value in records]


@pytest.fixture
def state(tmp_path: Path) -> StateReplica:
    """A state group of three nodes."""
    group = RaftGroup(1, RaftStorage(ConfState((1, 2, 3)), 4), 1)
    return StateReplica(group, "state", Commands(), CheckpointStore(RecordingDisk(), tmp_path))


def test_only_commands_reach_the_state_machine(state: StateReplica) -> None:
    entries = [Entry(1, 1), Entry(1, 2, data=b"command", kind=COMMAND), Entry(1, 3, kind=EntryType.EMPTY)]
    assert [state.apply(entry) for entry in entries] == [None, 1, None]
    assert (state.entries_since, state.bytes_since) == (3, len(b"command"))


def test_a_state_is_restored_with_its_results(state: StateReplica) -> None:
    state.apply(Entry(1, 1, data=b"command", kind=COMMAND))
    state.rows.record(ProposalId(2, 1, 1), 1)
    other = StateReplica(RaftGroup(1, RaftStorage(ConfState()), 1), "state", Commands(), state.store)
    other.rows.record(ProposalId(9, 9, 9), 1)
    other.take_over(restored_state("state", Commands, list(state.checkpoint_records())))
    assert other.machine.snapshot() == [(b"0", b"command")]
    assert [row.node_id for row in other.rows.snapshot().encoded()] == [2]


def test_the_journal_is_needed_from_the_older_checkpoint_on(state: StateReplica) -> None:
    state.set_checkpoints([CheckpointId(1, 10)], Snapshot(10, 1, ConfState((1, 2, 3))))
    assert state.group.durable_index == 0
    state.set_checkpoints([CheckpointId(1, 10), CheckpointId(2, 30)], Snapshot(30, 2, ConfState((1,))))
    assert state.group.durable_index == 10
    assert state.snapshot == Snapshot(30, 2, ConfState((1,)))


def test_the_journal_is_not_needed_again_when_a_checkpoint_turns_out_damaged(state: StateReplica) -> None:
    for ids in ([10, 30], [5, 30]):
        state.set_checkpoints([CheckpointId(1, index) for index in ids], None)
    assert state.group.durable_index == 10


def test_a_checkpoint_that_is_not_the_newest_is_no_snapshot_for_followers(state: StateReplica) -> None:
    newest = Snapshot(30, 2, ConfState((1, 2, 3)))
    state.set_checkpoints([CheckpointId(2, 30)], newest)
    state.set_checkpoints([CheckpointId(1, 20), CheckpointId(2, 30)], Snapshot(20, 1, ConfState((1,))))
    assert state.snapshot == newest
