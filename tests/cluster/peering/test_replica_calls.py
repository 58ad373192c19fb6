"""Calls to the replicas of a partition that this node has none of."""

import asyncio

import pytest

from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.peering.replica_calls import RemotePartition, ReplicaCalls
from pixy.errors import CorruptData, DeadlineExceeded, PixyError, ShuttingDown, Unavailable, UnknownPartition
from pixy.records import TopicPartition
from tests.cluster.answering_peers import AnsweringPeers
from tests.fakes.waiting import settle

TARGET = RemotePartition(TopicPartition("topic", 5), 1005, (1, 2, 3))


class Asking:
    """Calls to peers that answer as told: with bytes, or an error."""

    def __init__(self, **answers: bytes | PixyError) -> None:
        self.answers = {int(name[1:]): answer for name, answer in answers.items()}
        self.down: set[int] = set()
        self.peers = AnsweringPeers(self._answer)
        self.calls = ReplicaCalls(self.peers, lambda node_id: node_id not in self.down)

    async def _answer(self, node_id: int, _: int, __: bytes) -> bytes:
        answer = self.answers[node_id]
        if isinstance(answer, PixyError):
            raise answer
        return answer

    async def call(self, timeout: float = 0.0) -> bytes:
        return await self.calls.call(TARGET, PeerMethod.FETCH, b"payload", timeout, 1.0)


async def test_the_leader_is_asked_first_if_it_is_known() -> None:
    asking = Asking(n1=b"one", n2=b"two", n3=b"three")
    assert await asking.call() == b"one"
    asking.calls.leaders[TARGET.raft_group] = 3
    assert await asking.call() == b"three"
    asking.calls.leaders[TARGET.raft_group] = 9
    assert await asking.call() == b"one", "not a replica any more"
    assert asking.peers.asked == [1, 3, 1]


async def test_nodes_that_cannot_be_reached_come_last() -> None:
    asking = Asking(n1=b"one", n2=Unavailable("busy"), n3=ShuttingDown())
    asking.down = {1}
    assert await asking.call() == b"one"
    assert asking.peers.asked == [2, 3, 1]


@pytest.mark.parametrize(
    "error",
    [Unavailable("busy"), ShuttingDown(), DeadlineExceeded("late"), CorruptData("damaged")],
    ids=lambda error: type(error).__name__,
)
async def test_another_replica_is_asked_when_one_cannot_tell(error: PixyError) -> None:
    assert await Asking(n1=error, n2=b"two").call() == b"two"


async def test_what_another_replica_would_say_too_is_raised() -> None:
    asking = Asking(n1=UnknownPartition("the topic was deleted"))
    with pytest.raises(UnknownPartition, match="the topic was deleted"):
        await asking.call()


@pytest.mark.parametrize(
    ("answers", "expected", "text"),
    [
        (
            {"n1": ShuttingDown(), "n2": DeadlineExceeded("x"), "n3": Unavailable("x")},
            Unavailable,
            r"no replica of partition 5 of topic topic answers \(nodes: 1, 2, 3\): service is shutting down",
        ),
        (
            {"n1": Unavailable("x"), "n2": CorruptData("segment 7 is damaged"), "n3": Unavailable("x")},
            CorruptData,
            "segment 7 is damaged",
        ),
    ],
)
async def test_the_error_of_replicas_that_all_fail(
    answers: dict[str, bytes | PixyError], expected: type[PixyError], text: str
) -> None:
    with pytest.raises(expected, match=text):
        await Asking(**answers).call()


@pytest.mark.slow
async def test_replicas_are_asked_again_until_the_time_is_over() -> None:
    asking = Asking(n1=Unavailable("x"), n2=Unavailable("x"), n3=Unavailable("x"))
    asyncio.get_running_loop().call_later(0.05, asking.answers.update, {2: b"two"})
    assert await asking.call(60.0) == b"two"
    assert asking.peers.asked.count(1) > 1


async def test_a_partition_without_other_replicas_is_unavailable() -> None:
    asking = Asking()
    with pytest.raises(Unavailable, match=r"answers \(nodes: none\): there is none"):
        await asking.calls.call(TARGET._replace(replicas=()), PeerMethod.FETCH, b"", 0.0, 1.0)


async def test_the_candidates_are_each_named_once() -> None:
    calls, order = Asking().calls, list[int]()
    calls.leaders[7] = 3
    while (node_id := calls.candidate(7, (1, 2, 3), order)) is not None:
        order.append(node_id)
    assert order == [3, 1, 2]


async def test_a_node_that_stops_asks_nobody_again() -> None:
    asking = Asking(n1=Unavailable("x"), n2=Unavailable("x"), n3=Unavailable("x"))
    calling = asyncio.create_task(asking.call(60.0))
    await settle()
    asking.calls.stop()
    with pytest.raises(ShuttingDown):
        await calling
