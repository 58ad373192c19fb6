"""A leader that applies its own removal proposes nothing behind it."""

from collections.abc import Sequence
from pathlib import Path

from pixy.multiraft.dedup_table import WINDOW, DedupTable
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import (
    ConfChangeSingle,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    Message,
    MessageType,
    StateType,
)
from pixy.storage import EntryType
from tests.cluster.node_logs import open_log

GROUP = 2


class Bench:
    """Node 1 with a node 2 that agrees to everything, when the test delivers its answers."""

    def __init__(self, directory: Path) -> None:
        self.answers: list[Message] = []
        self.log, _, _, self.faults = open_log(directory, send=self._send)
        self.group = self.log.driver.group(GROUP, ConfState((1, 2)))
        self.log.driver.bind(self.group, Nothing(), lambda *_: None)

    def _send(self, _: int, messages: Sequence[tuple[int, Message]]) -> None:
        kinds = {
            MessageType.PRE_VOTE: MessageType.PRE_VOTE_RESP,
            MessageType.VOTE: MessageType.VOTE_RESP,
            MessageType.APP: MessageType.APP_RESP,
        }
        for _, message in messages:
            kind = kinds.get(message.type)
            if kind is not None:
                index = message.index + len(message.entries)
                self.answers.append(Message(kind, 1, 2, message.term, index=index))

    async def settle(self) -> None:
        for _ in range(4):
            await self.log.journal.drained()
            answers, self.answers = self.answers, []
            # An acknowledgement includes the ones before.
            for answer in answers[-1:]:
                self.log.driver.step(GROUP, answer)


class Nothing:
    """An application without state."""

    def __init__(self) -> None:
        self.rows = DedupTable()

    def may_have_replica(self, node_id: int) -> bool:
        return True

    def lead(self, tail: Sequence[Entry]) -> None: ...

    def stamp(
        self, kind: EntryType, payload: bytes | bytearray, term: int
    ) -> tuple[EntryType, bytes | bytearray]:
        return kind, payload


async def led(bench: Bench) -> RaftGroup:
    group = bench.group
    bench.log.driver.open(group).campaign()
    bench.log.driver.drive(group)
    await bench.settle()
    assert group.leads
    return group


async def test_what_waits_is_not_proposed_any_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    group = await led(bench)
    assert group.node is not None
    group.node.propose_conf_change(ConfChangeV2((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 1),)))
    bench.log.driver.drive(group)
    results: list[object] = []
    for _ in range(WINDOW + 2):
        bench.log.driver.propose(group, EntryType.COMMAND, b"", results.append)
    await bench.settle()
    assert group.storage.conf_state.voters == (2,)
    assert group.node.raft.state is StateType.FOLLOWER
    assert not group.leads
    assert results == [None] * WINDOW
    assert bench.faults == []
    bench.log.abandon()
