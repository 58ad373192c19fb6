"""Back-pressure at a follower: entries that are not committed never keep it from taking others."""

from pathlib import Path

from pixy.cluster.log.node_log import NodeLog
from pixy.config import JournalConfig
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import ConfState, Entry, Message, MessageType
from tests.cluster.node_logs import open_log

ROOM = 100
GROUP = 1000


def follower(directory: Path) -> tuple[NodeLog, RaftGroup]:
    """Node 1, a member of one partition's raft group, with little room."""
    log = open_log(directory, JournalConfig(max_unapplied_bytes=ROOM)).log
    return log, log.driver.group(GROUP, ConfState((1, 2, 3)))


def append(leader: int, term: int, before: tuple[int, int], size: int) -> Message:
    """An append of one entry of a leader's term behind (term, index)."""
    log_term, index = before
    entry = Entry(term, index + 1, data=bytes(size), kind=1)
    return Message(MessageType.APP, 1, leader, term, log_term, index, [entry])


async def test_a_new_leader_replaces_a_tail_that_fills_the_room(tmp_path: Path) -> None:
    log, group = follower(tmp_path)
    log.driver.step(GROUP, append(2, 1, (0, 0), 10 * ROOM))
    await log.journal.drained()
    assert log.room() < 0
    log.driver.step(GROUP, append(3, 2, (0, 0), 1))
    await log.journal.drained()
    assert group.storage.term(1) == 2
    assert log.room() > 0
    log.abandon()


async def test_a_leader_goes_on_behind_a_tail_that_it_cannot_commit_otherwise(tmp_path: Path) -> None:
    log, group = follower(tmp_path)
    log.driver.step(GROUP, append(2, 1, (0, 0), 10 * ROOM))
    log.driver.step(GROUP, append(2, 2, (1, 1), 0))
    await log.journal.drained()
    assert group.storage.last_index() == 2
    log.abandon()


async def test_a_follower_whose_segments_lag_takes_no_further_batches(tmp_path: Path) -> None:
    log, group = follower(tmp_path)
    log.writer.unwritten_bytes = ROOM + 1
    log.driver.step(GROUP, append(2, 1, (0, 0), 1))
    assert group.storage.last_index() == 0
    log.writer.unwritten_bytes = ROOM
    log.driver.step(GROUP, append(2, 1, (0, 0), 1))
    await log.journal.drained()
    assert group.storage.last_index() == 1
    log.abandon()
