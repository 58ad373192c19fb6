"""The log of a node: back-pressure, a stop, a fault, and how its parts work together."""

import errno
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.log.checkpoint_state import restored_state
from pixy.cluster.log.node_log import LogPeers
from pixy.cluster.log.replica import StateReplica
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import Unavailable
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import checkpoint_record
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, Entry, Message, MessageType, Snapshot
from pixy.storage import CheckpointStore
from tests.cluster.drivers import BATCH, COMMAND, GROUP, PayloadLog, batch_of
from tests.cluster.node_logs import open_log
from tests.fakes.waiting import settle

ROOM = 1000
STATE = 2
PEERS, ALONE = ConfState((1, 2, 3)), ConfState((1,))
APP, APP_RESP, SNAP = MessageType.APP, MessageType.APP_RESP, MessageType.SNAP


class Tally:
    """A state machine that counts its commands."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, payload: bytes, term: int = 0) -> Any:
        self.count += 1

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        return [(b"count", b"%d" % self.count)]

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.count = int(dict(records)[b"count"])


class LoggingNode:
    """Node 1 with a partition's group `GROUP` and a state group `STATE`.

    Attributes:
        sent: messages to each of the other nodes, in order.
        fetches: snapshots that are to be fetched.
        results: of the proposals to `GROUP`.
    """

    def __init__(self, directory: Path, members: ConfState, checkpoint_entries: int = 100) -> None:
        self.sent: list[Message] = []
        self.fetches: list[Snapshot] = []
        self.results: list[Any] = []
        journal = JournalConfig(file_bytes=4096, max_unapplied_bytes=ROOM)
        storage = StorageConfig(checkpoint_entries=checkpoint_entries)
        opened = open_log(directory, journal, storage, self._send, self._fetch)
        self.log, _, self.disk, self.faults = opened
        self.driver = self.log.driver
        self.group = self.driver.group(GROUP, members)
        self.application = PayloadLog()
        self.driver.bind(self.group, self.application, PayloadLog.apply)
        self.machine = Tally()
        store = CheckpointStore(self.disk, directory / "state" / "state")
        self.replica = StateReplica(self.driver.group(STATE, members), "state", self.machine, store)
        self.log.bind(self.replica, StateReplica.apply)

    def _send(self, _: int, messages: Sequence[tuple[int, Message]]) -> None:
        self.sent += [message for _, message in messages]

    def _fetch(self, _: RaftGroup, message: Message) -> None:
        assert message.snapshot is not None
        self.fetches.append(message.snapshot)

    def propose(self, name: bytes) -> None:
        """Propose a batch with one record."""
        self.driver.propose(self.group, BATCH, batch_of(name), self.results.append)

    async def write(self) -> None:
        for _ in range(4):
            await settle()
            await self.log.journal.drained()

    async def lead(self, group: RaftGroup) -> None:
        """Become the leader by the votes of node 2."""
        raft = self.driver.open(group)
        raft.campaign()
        self.driver.drive(group)
        for kind in (MessageType.PRE_VOTE_RESP, MessageType.VOTE_RESP):
            self.driver.step(group.raft_group, Message(kind, 1, 2, 1))
            await self.write()
        assert group.leads

    def sent_to(self, node_id: int, kind: MessageType) -> list[Message]:
        return [message for message in self.sent if message.to == node_id and message.type is kind]


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[LoggingNode]:
    """A node without others."""
    node = LoggingNode(tmp_path, ALONE)
    yield node
    node.log.abandon()


@pytest.fixture
async def one_of_three(tmp_path: Path) -> AsyncIterator[LoggingNode]:
    """A node with two others, which the test speaks for."""
    node = LoggingNode(tmp_path, PEERS, checkpoint_entries=5)
    yield node
    node.log.abandon()


# --- back-pressure --------------------------------------------------------------------------------


async def test_room_is_what_neither_unapplied_nor_unwritten_bytes_take(alone: LoggingNode) -> None:
    assert alone.log.room() == ROOM
    alone.log.writer.unwritten_bytes = 300
    alone.driver.unapplied_bytes = 500
    assert alone.log.room() == ROOM - 800


async def test_batches_wait_for_segments_and_go_on_with_the_next_durable_write(alone: LoggingNode) -> None:
    alone.propose(b"first")
    await alone.write()
    alone.log.writer.unwritten_bytes = ROOM + 1
    # The room that was found before is used up.
    for number in range(20):
        alone.propose(b"%d" % number + bytes(ROOM))
    await alone.write()
    proposed = len(alone.results)
    assert proposed < 21
    alone.log.writer.unwritten_bytes = 0
    alone.driver.propose(alone.replica.group, COMMAND, b"", lambda _: None)
    await alone.write()
    assert len(alone.results) > proposed
    assert alone.results == list(range(len(alone.results)))


async def test_commands_pass_while_batches_wait(alone: LoggingNode) -> None:
    alone.log.writer.unwritten_bytes = ROOM + 1
    alone.propose(b"batch")
    alone.driver.propose(alone.replica.group, COMMAND, b"", lambda _: None)
    await alone.write()
    assert (alone.results, alone.machine.count) == ([], 1)


async def test_a_stop_writes_what_waited(alone: LoggingNode) -> None:
    alone.propose(b"first")
    await alone.write()
    alone.log.writer.unwritten_bytes = ROOM + 1
    for _ in range(20):
        alone.propose(bytes(ROOM))
    await alone.write()
    assert len(alone.results) < 21
    await alone.log.stop()
    assert alone.results == list(range(21))


async def test_a_full_disk_blocks_records_and_everything_else(alone: LoggingNode) -> None:
    assert (alone.log.blocked, alone.log.stalled) == (None, None)
    alone.log.writer.blocked = Unavailable("segments")
    assert alone.log.blocked is alone.log.writer.blocked
    assert alone.log.stalled is None
    alone.log.journal.blocked = Unavailable("journal")
    assert alone.log.blocked is alone.log.stalled is alone.log.journal.blocked


# --- faults ---------------------------------------------------------------------------------------


async def test_after_a_fault_nothing_is_answered_and_nobody_waits(alone: LoggingNode) -> None:
    alone.propose(b"first")
    alone.disk.fail("write", ".journal", errno.EIO)
    await settle()
    [fault] = alone.faults
    alone.log.give_up(fault)
    await alone.log.journal.drained()
    with pytest.raises(OSError, match="Input/output error"):
        await alone.driver.reads.catch_up([alone.group])
    assert alone.results == []


async def test_nothing_becomes_durable_after_a_fault_of_another_part(alone: LoggingNode) -> None:
    alone.propose(b"first")
    alone.log.give_up(ValueError("a bug"))
    await settle()
    assert (alone.results, alone.group.applied_index) == ([], 0)


async def test_a_node_without_peers_has_nobody_to_send_to() -> None:
    peers = LogPeers()
    with pytest.raises(AssertionError, match="without peers"):
        peers.send(2, [])
    with pytest.raises(AssertionError, match="without peers"):
        peers.fetch(RaftGroup(1, RaftStorage(ALONE), 1), Message(SNAP, 2))


# --- entries that are not in memory ---------------------------------------------------------------


async def test_a_lagging_follower_is_sent_entries_from_the_journal(one_of_three: LoggingNode) -> None:
    node = one_of_three
    await node.lead(node.group)
    for index in range(1, 6):
        node.propose(b"%d" % index)
        await node.write()
        node.driver.step(GROUP, Message(APP_RESP, 1, 2, 1, index=index + 1))
    assert node.results == [0, 1, 2, 3, 4]
    node.group.storage.release(node.group.applied_index)
    node.sent.clear()
    node.driver.step(GROUP, Message(APP_RESP, 1, 3, 1, index=0, reject=True, reject_hint=0))
    await node.write()
    sent = [entry.index for message in node.sent_to(3, APP) for entry in message.entries]
    assert sent == [1, 2, 3, 4, 5, 6]
    assert node.group.storage.in_memory(2) is None


# --- checkpoints ----------------------------------------------------------------------------------


async def test_a_follower_waits_for_the_next_checkpoint(one_of_three: LoggingNode) -> None:
    node = one_of_three
    group = node.replica.group
    await node.lead(group)
    node.driver.step(STATE, Message(APP_RESP, 1, 2, 1, index=1))
    group.storage.compact(1)
    node.driver.step(STATE, Message(APP_RESP, 1, 3, 1, index=0, reject=True, reject_hint=0))
    await settle()
    [snapshot] = [message.snapshot for message in node.sent_to(3, SNAP)]
    assert snapshot == Snapshot(1, 1, PEERS)


async def test_an_empty_entry_makes_a_second_checkpoint_differ(alone: LoggingNode) -> None:
    alone.driver.propose(alone.replica.group, COMMAND, b"", lambda _: None)
    await alone.write()
    for _ in range(2):
        alone.log.checkpoints.write(alone.replica)
        await alone.write()
    assert [id.end_offset for id in alone.replica.checkpoints] == [2, 3]


async def test_without_the_empty_entry_there_is_no_second_checkpoint(alone: LoggingNode) -> None:
    alone.driver.propose(alone.replica.group, COMMAND, b"", lambda _: None)
    await alone.write()
    alone.log.checkpoints.write(alone.replica)
    await alone.write()
    alone.driver.remove(alone.replica.group, Unavailable("gone"))
    alone.log.checkpoints.write(alone.replica)
    await alone.write()
    assert len(alone.disk.did("rename", ".checkpoint")) == 1
    assert not alone.replica.checkpointing


def install(node: LoggingNode, index: int) -> None:
    """Install a leader's checkpoint after `index` commands."""
    state = checkpoint_record(DedupTable().snapshot(), RaftStorage(PEERS))
    records = [state, (b"count", b"%d" % index)]
    restored = restored_state("state", type(node.machine), records.copy())
    node.log.install(node.replica, Snapshot(index, 2, PEERS), restored, records)


def offer(node: LoggingNode, index: int) -> None:
    node.driver.step(STATE, Message(SNAP, 1, 2, 2, snapshot=Snapshot(index, 2, PEERS)))


async def test_a_fetched_checkpoint_becomes_the_state(one_of_three: LoggingNode) -> None:
    node = one_of_three
    offer(node, 9)
    assert node.fetches == [Snapshot(9, 2, PEERS)]
    install(node, 9)
    assert node.machine.count == 0
    await node.write()
    assert (node.machine.count, node.replica.group.applied_index) == (9, 9)
    assert node.replica.snapshot == Snapshot(9, 2, PEERS)


async def test_a_fetched_checkpoint_without_room_is_fetched_again(one_of_three: LoggingNode) -> None:
    node = one_of_three
    offer(node, 9)
    node.disk.fail("create", ".part", errno.ENOSPC)
    install(node, 9)
    await node.write()
    node.disk.heal()
    offer(node, 9)
    assert len(node.fetches) == 2
    install(node, 9)
    await node.write()
    assert node.machine.count == 9


async def test_a_fetched_checkpoint_is_not_needed_if_the_entries_came(one_of_three: LoggingNode) -> None:
    node = one_of_three
    offer(node, 1)
    entry = Entry(2, 1, data=b"", kind=COMMAND)
    node.driver.step(STATE, Message(APP, 1, 2, 2, entries=[entry], commit=1))
    await node.write()
    install(node, 1)
    await node.write()
    assert (node.machine.count, node.replica.snapshot) == (1, None)


async def test_a_checkpoint_lets_go_of_the_journal(alone: LoggingNode) -> None:
    alone.log.retention.start()
    for _ in range(8):
        alone.driver.propose(alone.replica.group, COMMAND, bytes(1500), lambda _: None)
        await alone.write()
    files = len(alone.log.journal.files)
    for _ in range(2):
        alone.log.checkpoints.write(alone.replica)
        await alone.write()
    await alone.write()
    assert len(alone.log.journal.files) < files
