"""Calls to the replicas of partitions that this node has none of.

Any replica can answer a read. The leader is asked first if it is known: it has every record first.
Nodes that cannot be reached come last, because a connection may be up again before anybody is told.

    the call ends with                          then
    ------------------------------------------  -------------------------------------------------
    the answer                                  it is returned
    UNAVAILABLE, no answer in time, or damage   the next replica is asked
    any other error                             it is raised: another replica would say the same
    no replica left                             again after a pause, until the time is over
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import NamedTuple, Protocol, TypeVar

from pixy.aio.retries import Backoff
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.errors import CorruptData, DeadlineExceeded, PixyError, ShuttingDown, Unavailable
from pixy.records import TopicPartition

T = TypeVar("T")

_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.5


class RemotePartition(NamedTuple):
    """A partition that this node has no replica of, or none that it can read.

    Attributes:
        raft_group: its raft group.
        replicas: the other nodes with a replica, the preferred leader first.
    """

    partition: TopicPartition
    raft_group: int
    replicas: tuple[int, ...]


class CallPeer(Protocol):
    """The calls of a `PeerChannel`."""

    async def call(
        self, node_id: int, method: int, payload: bytes, timeout: float, *, bulk: bool = False
    ) -> bytes:
        """As `PeerChannel.call`."""


class ReplicaCalls:
    """Calls of one node.

    Args:
        channel: to the other nodes.
        is_up: tells whether a node can be reached.

    Attributes:
        leaders: leader of each raft group that this node has no replica of, as far as it was told.
    """

    def __init__(self, channel: CallPeer, is_up: Callable[[int], bool]) -> None:
        self._channel = channel
        self._is_up = is_up
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.leaders: dict[int, int] = {}

    def stop(self) -> None:
        """The node stops: calls that fail are not repeated."""
        self._stopped = True

    @property
    def has_stopped(self) -> bool:
        """True once the node stops: no call succeeds any more."""
        return self._stopped

    def candidate(self, raft_group: int, replicas: Sequence[int], tried: Collection[int]) -> int | None:
        """The replica to ask next, None if all were tried."""
        leader = self.leaders.get(raft_group)
        if leader is not None and leader in replicas and leader not in tried:
            return leader
        left = [each for each in replicas if each not in tried]
        return next((each for each in left if self._is_up(each)), left[0] if left else None)

    def call(
        self,
        target: RemotePartition,
        method: PeerMethod,
        payload: bytes,
        timeout: float,
        attempt_s: float,
        *,
        bulk: bool = False,
    ) -> Coroutine[None, None, bytes]:
        """Ask the replicas of a partition until one answers, as `ask_until_answered`.

        Args:
            attempt_s: seconds that one attempt may take.
            bulk: the answer may be large.
        """

        def ask(node_id: int) -> Coroutine[None, None, bytes]:
            return self.ask(node_id, method, payload, attempt_s, bulk=bulk)

        return self.ask_until_answered(target, timeout, ask)

    async def ask_until_answered(
        self, target: RemotePartition, timeout: float, ask: Callable[[int], Coroutine[None, None, T]]
    ) -> T:
        """Ask the replicas of a partition until one answers.

        Args:
            timeout: seconds in which an attempt may begin.
            ask: asks a node.

        Raises:
            Unavailable: no replica has answered.
            ShuttingDown: this node stops.
            PixyError: the answer of one.
        """
        until = self._loop.time() + timeout
        backoff = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        while True:
            failures: list[PixyError] = []
            tried: set[int] = set()
            while (node_id := self.candidate(target.raft_group, target.replicas, tried)) is not None:
                tried.add(node_id)
                try:
                    return await ask(node_id)
                except (Unavailable, DeadlineExceeded, CorruptData) as error:
                    failures.append(error)
                if self._stopped:
                    raise ShuttingDown
            pause = backoff.grow()
            if self._loop.time() + pause > until:
                raise _failure(target, failures)
            await asyncio.sleep(pause)

    def ask(
        self, node_id: int, method: PeerMethod, payload: bytes, timeout: float, *, bulk: bool = False
    ) -> Coroutine[None, None, bytes]:
        """Ask one node, as `PeerChannel.call`."""
        return self._channel.call(node_id, method, payload, timeout, bulk=bulk)


def _failure(target: RemotePartition, failures: Sequence[PixyError]) -> PixyError:
    topic, partition = target.partition
    damage = next((each for each in failures if isinstance(each, CorruptData)), None)
    if damage is not None:
        return CorruptData(str(damage))
    nodes = ", ".join(map(str, target.replicas)) or "none"
    reason = str(failures[0]) if failures else "there is none"
    return Unavailable(
        f"no replica of partition {partition} of topic {topic} answers (nodes: {nodes}): {reason}"
    )
