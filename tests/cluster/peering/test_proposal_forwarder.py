"""Proposals to raft groups without a replica here: attempts, windows, deadlines."""

import asyncio
from typing import Any

import pytest

from pixy.aio.futures import resolve
from pixy.cluster.peering.proposal_forwarder import ProposalForwarder
from pixy.cluster.peering.replica_calls import RemotePartition, ReplicaCalls
from pixy.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    PixyError,
    Unavailable,
    UnknownPartition,
)
from pixy.faults import report_to_loop
from pixy.multiraft.dedup_table import WINDOW
from pixy.proto.node_calls_pb2 import ProposeRequest, ProposeResponse
from pixy.records import TopicPartition, offsets_of, split_batches
from tests.cluster.answering_peers import AnsweringPeers
from tests.cluster.drivers import BATCH, BATCHES, batch_of
from tests.fakes.waiting import settle, until

TARGET = RemotePartition(TopicPartition("topic", 0), 1000, (1, 2, 3))
NOT_LEADER = ProposeResponse(not_leader=True)
NEVER = float("inf")


class RemoteLog:
    """A partition on nodes 1 to 3, which takes every proposal once.

    Attributes:
        leader: the node that leads, 0 for none.
        known: what a node that does not lead answers.
        holds: the leader does not answer yet.
        sequences: of the proposals, in the order in which they were taken.
    """

    def __init__(self) -> None:
        self.leader = 1
        self.known = NOT_LEADER
        self.failing: dict[int, PixyError] = {}
        self.holds = False
        self.sequences: list[int] = []
        self.kinds: list[int] = []
        self._released: list[asyncio.Future[None]] = []
        self._offsets: dict[int, int] = {}
        self._end = 0
        self.peers = AnsweringPeers(self._answer)
        self.calls = ReplicaCalls(self.peers, lambda _: True)
        self.proposals = ProposalForwarder(9, 4, self.calls, report_to_loop)
        self.results: dict[bytes, Any] = {}

    async def _answer(self, node_id: int, _: int, payload: bytes) -> bytes:
        if node_id in self.failing:
            raise self.failing[node_id]
        if node_id != self.leader:
            return self.known.SerializeToString()
        request = ProposeRequest.FromString(payload)
        assert (request.raft_group, request.incarnation) == (1000, 4)
        if request.sequence not in self._offsets:
            self.sequences.append(request.sequence)
            self.kinds.append(request.kind)
            self._offsets[request.sequence] = self._end
            for batch in split_batches(memoryview(request.payload)):
                begin, end = offsets_of(batch)
                self._end += end - begin
        if self.holds:
            released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._released.append(released)
            await released
        return ProposeResponse(offset=self._offsets[request.sequence]).SerializeToString()

    def release(self) -> None:
        """Answer, now and later."""
        self.holds = False
        for each in self._released:
            resolve(each, None)

    def propose(self, *values: bytes, deadline: float = NEVER) -> None:
        def done(result: Any) -> None:
            assert values[0] not in self.results
            self.results[values[0]] = result

        self.proposals.propose(TARGET, BATCH, batch_of(*values), done, deadline)

    async def answered(self, count: int) -> None:
        await until(lambda: len(self.results) == count)


@pytest.fixture
async def log() -> Any:
    made = RemoteLog()
    yield made
    await made.proposals.stop()


async def test_the_answer_of_the_leader_is_the_result(log: RemoteLog) -> None:
    log.propose(b"a", b"b")
    log.propose(b"c")
    await log.answered(2)
    assert log.results == {b"a": 0, b"c": 2}
    assert log.calls.leaders == {1000: 1}


async def test_the_leader_is_found_and_remembered(log: RemoteLog) -> None:
    log.leader = 3
    log.propose(b"a")
    await log.answered(1)
    assert log.peers.asked == [1, 2, 3]
    log.propose(b"b")
    await log.answered(2)
    assert log.peers.asked[3:] == [3]


async def test_a_leader_that_is_none_of_the_former_replicas_is_asked(log: RemoteLog) -> None:
    log.leader, log.known = 5, ProposeResponse(not_leader=True, leader=5)
    log.propose(b"a")
    await log.answered(1)
    assert log.peers.asked == [1, 5]


async def test_a_node_that_does_not_lead_names_the_leader(log: RemoteLog) -> None:
    log.leader, log.known = 3, ProposeResponse(not_leader=True, leader=3)
    log.propose(b"a")
    await log.answered(1)
    assert log.peers.asked == [1, 3]


async def test_this_node_answers_itself_when_the_others_name_it_as_the_leader(log: RemoteLog) -> None:
    asked: list[int] = []

    async def answer(caller: int, payload: bytes) -> bytes:
        asked.append(caller)
        if len(asked) == 1:
            return ProposeResponse(not_leader=True).SerializeToString()
        assert ProposeRequest.FromString(payload).sequence == 1
        return ProposeResponse(offset=7).SerializeToString()

    log.proposals.answer = answer
    log.leader, log.known = 0, ProposeResponse(not_leader=True, leader=9)
    log.propose(b"a")
    await log.answered(1)
    assert (log.results, asked) == ({b"a": 7}, [9, 9])
    assert log.calls.leaders == {1000: 9}


async def test_a_leader_that_names_itself_no_more_is_forgotten(log: RemoteLog) -> None:
    log.calls.leaders[1000] = 2
    log.propose(b"a")
    await log.answered(1)
    assert log.peers.asked == [2, 1]
    log.failing[1] = Unavailable("gone")
    log.leader = 0
    log.propose(b"b")
    await settle()
    assert log.calls.leaders == {}


@pytest.mark.slow
async def test_a_proposal_goes_on_under_its_identity_until_there_is_a_leader(log: RemoteLog) -> None:
    log.leader = 0
    log.propose(b"a")
    await until(lambda: len(log.peers.asked) > 3)
    log.leader = 2
    await log.answered(1)
    assert log.results == {b"a": 0}
    assert log.sequences == [1]


async def test_a_lost_answer_is_asked_for_again(log: RemoteLog) -> None:
    log.holds = True
    log.propose(b"a")
    await settle()
    log.leader = 2
    for each in log._released:
        each.set_exception(Unavailable("the connection has ended"))
    log.release()
    await log.answered(1)
    assert log.results == {b"a": 0}
    assert log.sequences == [1], "recognized"


async def test_at_most_a_window_is_in_flight_and_the_rest_shares_an_entry(log: RemoteLog) -> None:
    log.holds = True
    for number in range(WINDOW + 5):
        log.propose(b"%d" % number)
    await settle()
    assert log.sequences == list(range(1, WINDOW + 1))
    log.release()
    await log.answered(WINDOW + 5)
    assert log.results == {b"%d" % number: number for number in range(WINDOW + 5)}
    assert log.sequences == list(range(1, WINDOW + 2))
    assert log.kinds == [BATCH] * WINDOW + [BATCHES]


@pytest.mark.slow
async def test_the_deadline_ends_the_attempts(log: RemoteLog) -> None:
    log.leader = 0
    log.propose(b"a", deadline=asyncio.get_running_loop().time() + 0.05)
    await log.answered(1)
    assert isinstance(log.results[b"a"], DeadlineExceeded)
    await until(lambda: not len(log.proposals._tasks))


async def test_an_error_that_another_replica_would_give_too_is_the_result(log: RemoteLog) -> None:
    log.failing[1] = FailedPrecondition("kind 7 is not proposed for other nodes")
    log.propose(b"a")
    await log.answered(1)
    assert isinstance(log.results[b"a"], FailedPrecondition)


async def test_a_partition_that_is_gone_answers_everything_and_its_sequences_never_return(
    log: RemoteLog,
) -> None:
    log.holds = True
    for number in range(WINDOW + 2):
        log.propose(b"%d" % number)
    await settle()
    log.proposals.removed([1000, 1001], UnknownPartition("topic topic was deleted"))
    assert len(log.results) == WINDOW + 2
    assert {type(each) for each in log.results.values()} == {UnknownPartition}
    assert log.calls.leaders == {}
    log.release()
    await until(lambda: not len(log.proposals._tasks))
    assert len(log.results) == WINDOW + 2


async def test_a_stop_answers_what_is_left(log: RemoteLog) -> None:
    log.holds = True
    log.propose(b"a")
    await settle()
    await log.proposals.stop()
    assert isinstance(log.results[b"a"], DeadlineExceeded), "it may be written"


@pytest.mark.slow
async def test_a_quiet_node_has_no_timer(log: RemoteLog) -> None:
    log.propose(b"a")
    await log.answered(1)
    assert log.proposals._timer is not None
    await until(lambda: log.proposals._timer is None)
    log.propose(b"b")
    await log.answered(2)
    assert log.sequences == [1, 2]
