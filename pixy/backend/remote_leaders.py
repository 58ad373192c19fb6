"""Leaders of partitions that this node has no replica of: the nodes with replicas are asked."""

import asyncio
from collections.abc import Callable

from pixy.cluster import Node, PeerMethod, Topic
from pixy.errors import PixyError
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import LeadersRequest, LeadersResponse
from pixy.tasks import Tasks

__all__ = ["RemoteLeaders"]

_ASK_S = 2.0
_PAUSE_S = 1.0
"""Least seconds between two rounds of questions about a topic that nobody waits for."""


class RemoteLeaders:
    """Questions of one node for leaders.

    Args:
        node: this node.
        tasks: runs questions in the background.
        on_answer: called with the name of a topic whose leaders are known better.
    """

    def __init__(self, node: Node, tasks: Tasks, on_answer: Callable[[str], None]) -> None:
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
        try:
            await self.ask(topic)
            self._on_answer(topic.name)
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._asking.discard(topic.name)
        # Whoever looks at it next asks again if leaders are still unknown.
        self._on_answer(topic.name)

    async def ask(self, topic: Topic) -> None:
        """Ask for the leaders of partitions without a replica here; nodes that do not answer are
        passed over.
        """
        here = self._node.node_id
        asked: dict[int, list[int]] = {}
        for raft_group, replicas in zip(topic.raft_groups, topic.replicas, strict=True):
            for node_id in replicas if here not in replicas else ():
                asked.setdefault(node_id, []).append(raft_group)
        await asyncio.gather(*(self._ask_node(node_id, groups) for node_id, groups in asked.items()))

    async def _ask_node(self, node_id: int, raft_groups: list[int]) -> None:
        calls = self._node.calls
        assert calls is not None
        request = LeadersRequest(raft_groups=raft_groups).SerializeToString()
        try:
            answer = await calls.ask(node_id, PeerMethod.LEADERS, request, _ASK_S)
            led = decode_answer(LeadersResponse, answer, len(request)).raft_groups
        except PixyError:
            return
        for raft_group in {*led}.intersection(raft_groups):
            calls.leaders[raft_group] = node_id
