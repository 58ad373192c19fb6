"""Leaders of partitions that this node has no replica of, and replicas that are not in sync.

The nodes with replicas are asked. A leader knows which replicas follow it, and each node if its own
replica is damaged. So a topic is described alike at all nodes.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from pixy.aio.steps import in_steps
from pixy.aio.tasks import Tasks
from pixy.cluster import Node, PeerMethod, Topic
from pixy.errors import PixyError
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import LeadersRequest, LeadersResponse

_ASK_S = 2.0
_PAUSE_S = 1.0
"""Least seconds between two rounds of questions about a topic that nobody waits for."""
_GROUPS_ASKED = 5000
"""Raft groups in a request."""
_OUT_OF_SYNC_BYTES = 64
"""Largest answer about the replicas of a raft group."""

OutOfSync = Mapping[int, frozenset[int]]
"""By raft group the nodes whose replicas are not in sync, where there are some."""


class RemoteLeaders:
    """Questions of one node for leaders.

    Args:
        node: this node.
        tasks: runs questions in the background.
        on_answer: called with a topic whose leaders are known better, and with what is out of sync.
    """

    def __init__(self, node: Node, tasks: Tasks, on_answer: Callable[[Topic, OutOfSync], None]) -> None:
        self._node = node
        self._tasks = tasks
        self._on_answer = on_answer
        # Topics that are asked about in the background.
        self._asking: set[str] = set()

    def ask_soon(self, topic: Topic) -> None:
        """Ask in the background."""
        if topic.name not in self._asking:
            self._asking.add(topic.name)
            self._tasks.spawn(self._ask(topic), f"ask for the leaders of {topic.name}")

    async def _ask(self, topic: Topic) -> None:
        out_of_sync: OutOfSync = {}
        try:
            out_of_sync = await self.ask([topic])
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._asking.discard(topic.name)
        # Whoever looks at it next asks again if leaders are still unknown.
        self._on_answer(topic, out_of_sync)

    async def ask(self, topics: Sequence[Topic]) -> OutOfSync:
        """Ask for the leaders of partitions without a replica here, and which replicas are not in
        sync; nodes that do not answer are passed over.
        """
        asked: dict[int, list[int]] = defaultdict(list)
        partitions = (
            each for topic in topics for each in zip(topic.raft_groups, topic.replicas, strict=True)
        )
        async for raft_group, replicas in in_steps(partitions):
            for node_id in self._who_tells(replicas):
                asked[node_id].append(raft_group)
        found: dict[int, set[int]] = defaultdict(set)
        await asyncio.gather(
            *(
                self._ask_node(node_id, groups[at : at + _GROUPS_ASKED], found)
                for node_id, groups in asked.items()
                for at in range(0, len(groups), _GROUPS_ASKED)
            )
        )
        out_of_sync = {raft_group: frozenset(nodes) for raft_group, nodes in found.items()}
        for topic in topics:
            self._on_answer(topic, out_of_sync)
        return out_of_sync

    def _who_tells(self, replicas: Sequence[int]) -> Sequence[int]:
        """The nodes to ask about a partition. Leaders of those without a replica here are worth an
        attempt whoever seems to be up.
        """
        here, peers = self._node.node_id, self._node.peers
        if here not in replicas:
            return replicas
        return [
            each
            for each in replicas
            if each != here and peers is not None and peers.members.is_reachable(each)
        ]

    async def _ask_node(self, node_id: int, raft_groups: Sequence[int], found: dict[int, set[int]]) -> None:
        calls = self._node.calls
        assert calls is not None
        request = LeadersRequest(raft_groups=raft_groups, tell_out_of_sync=True).SerializeToString()
        bytes_max = len(request) + _OUT_OF_SYNC_BYTES * len(raft_groups)
        try:
            answer = await calls.ask(node_id, PeerMethod.LEADERS, request, _ASK_S)
            told = decode_answer(LeadersResponse, answer, bytes_max)
        except PixyError:
            return
        asked = set(raft_groups)
        for raft_group in asked.intersection(told.raft_groups):
            calls.leaders[raft_group] = node_id
        for each in told.out_of_sync:
            if each.raft_group in asked:
                found[each.raft_group].update(each.nodes)
