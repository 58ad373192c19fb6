"""Waits until other nodes have applied what is applied here.

A change is answered once the node that was asked has applied it. The others apply it a moment
later, or, cut off, much later, and until then act by what they know. What the answer to a deletion
promises holds at every node:

    deletion of    waits until it is applied by               the others
    -------------  -----------------------------------------  -------------------------------------
    a topic        so many of the nodes with replicas that    acknowledge nothing: they are no
                   the others are no majority of any          majority of any partition
                   partition
    records        the nodes with replicas that can be        serve the records until they hear of
                   reached                                    the deletion

A node that has applied the deletion of a topic has closed its replicas, and a start opens none
before its metadata is current. What it had confirmed before was written before.

The leader tells followers of the commit index first, on the same connections: so the answer to the
call comes after one round trip. A node that has not got it, because the message is lost or late,
asks the leader itself.
"""

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from pixy.aio.retries import Backoff
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.peering.replica_calls import ReplicaCalls
from pixy.cluster.replicas import Partitions
from pixy.cluster.state import Topic
from pixy.errors import PixyError
from pixy.multiraft import Driver, RaftGroup, ReadBatcher
from pixy.proto.node_calls_pb2 import AppliedRequest

_ASK_S = 6.0
"""Limit of one call: longer than the read that it may wait for."""
_READ_S = 5.0
_PAUSE_S, _PAUSE_MAX_S = 0.02, 0.5


class ReplicaQuorums:
    """Nodes of the partitions of a topic, as far as a majority of them matters.

    Args:
        topic: as it was when it was deleted.
    """

    def __init__(self, topic: Topic) -> None:
        # The nodes of each partition, and how many of them may be a majority of its voters. While
        # it moves these are never fewer than before or afterwards, whichever are fewer.
        self._sets = {(replicas, len(replicas) // 2 + 1) for replicas in set(topic.replicas)}
        for number, move in topic.moves.items():
            least = min(len(topic.replicas[number]), len(move.target))
            self._sets.add((topic.nodes(number), least // 2 + 1))

    @property
    def nodes(self) -> set[int]:
        """All of them."""
        return {each for nodes, _ in self._sets for each in nodes}

    def is_majority(self, some: AbstractSet[int]) -> bool:
        """True if some nodes may be a majority of the voters of a partition."""
        return any(len(some & {*nodes}) >= majority for nodes, majority in self._sets)


class AppliedElsewhere:
    """Questions of one node whether others have applied an entry, and its answers to theirs.

    Args:
        driver: of the raft groups.
        reads: linearizable reads of them.
        partitions: the partitions.
        calls: to the other nodes; None for a node without peers.
        is_reachable: true of a node that can be reached.
        is_asked: true of a node that belongs to the cluster, and knows the question.
    """

    def __init__(
        self,
        driver: Driver,
        reads: ReadBatcher,
        partitions: Partitions,
        calls: ReplicaCalls | None,
        is_reachable: Callable[[int], bool],
        is_asked: Callable[[int], bool],
    ) -> None:
        self._driver = driver
        self._reads = reads
        self._partitions = partitions
        self._calls = calls
        self._is_reachable = is_reachable
        self._is_asked = is_asked
        self._loop = asyncio.get_running_loop()

    async def wait(
        self,
        group: RaftGroup,
        nodes: Iterable[int],
        is_enough: Callable[[AbstractSet[int]], bool],
        timeout_s: float,
        *,
        gives_up: bool,
    ) -> AbstractSet[int]:
        """Wait until nodes have applied what this one has applied of a raft group.

        Args:
            nodes: those to ask; this one is not asked. Nodes of an older release count as if they
                had answered.
            is_enough: true if the wait may end without the answers of these nodes.
            timeout_s: longest wait.
            gives_up: True if nodes that cannot be reached are not waited for.

        Returns:
            The nodes that have not answered.
        """
        await self._partitions.wait_dropped()
        silent = {each for each in nodes if each != self._driver.node_id and self._is_asked(each)}
        if self._calls is None or not silent:
            return set()
        self._driver.tell_commit(group)
        until = self._loop.time() + timeout_s
        request = AppliedRequest(raft_group=group.raft_group, index=group.applied_index).SerializeToString()
        asking = {
            self._loop.create_task(self._ask(self._calls, each, request, gives_up=gives_up)): each
            for each in silent
        }
        try:
            while asking and not is_enough(silent):
                left = until - self._loop.time()
                done, _ = await asyncio.wait(asking, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    node_id = asking.pop(task)
                    if task.result():
                        silent.discard(node_id)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return silent

    async def _ask(self, calls: ReplicaCalls, node_id: int, request: bytes, *, gives_up: bool) -> bool:
        """Ask a node until it has answered; False if it is given up."""
        backoff = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        while True:
            try:
                await calls.ask(node_id, PeerMethod.APPLIED, request, _ASK_S)
            except PixyError:
                if calls.has_stopped or (gives_up and not self._is_reachable(node_id)):
                    return False
                await asyncio.sleep(backoff.grow())
            else:
                return True

    async def answer(self, payload: bytes) -> bytes:
        """The empty answer to a node, once an entry is applied here, or its raft group is gone.

        Raises:
            Unavailable: no leader has said in time what is committed.
        """
        request = AppliedRequest.FromString(payload)
        group = self._driver.groups.get(request.raft_group)
        if group is not None and group.applied_index < request.index:
            await self._reads.wait([group], _READ_S)
        await self._partitions.wait_dropped()
        return b""
