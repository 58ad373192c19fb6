"""Newcomers of partitions that move, asked if their replicas are intact.

A replica that is damaged confirms entries all the same, as its journal has them. If it replaced a
good one, the partition would have fewer good replicas than before, or none. So the leader of a
partition asks its newcomers before they become voters.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from pixy.aio.tasks import Tasks
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.errors import PixyError
from pixy.faults import OnFault
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import LeadersRequest, LeadersResponse

log = structlog.get_logger(__name__)

_ASK_S = 2.0
_PAUSE_S = 0.5
_VALID_S = 3.0
"""Time for which an answer counts."""
_ANSWER_BYTES = 64
"""Largest answer about a raft group."""

Call = Callable[[int, int, bytes, float], Awaitable[bytes]]


class _Told(NamedTuple):
    """An answer, and the loop time at which it was asked for."""

    is_intact: bool
    at: float


class NewcomerChecks:
    """Questions of one node to newcomers.

    Args:
        call: calls a node: id, method, payload, timeout in seconds.
        on_fault: called with an unexpected exception.
    """

    def __init__(self, call: Call, on_fault: OnFault) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(on_fault)
        # By node and raft group.
        self._told: dict[tuple[int, int], _Told] = {}
        # Raft groups to ask about, by node; and the nodes that are being asked.
        self._wanted: dict[int, set[int]] = defaultdict(set)
        self._asking: set[int] = set()

    async def stop(self) -> None:
        """Ask no more."""
        await self._tasks.cancel_all()

    def is_intact(self, node_id: int, raft_group: int) -> bool:
        """True if a newcomer has just said that its replica is intact; else it is asked."""
        told, now = self._told.get((node_id, raft_group)), self._loop.time()
        if told is None or now >= told.at + _PAUSE_S:
            self._wanted[node_id].add(raft_group)
        return told is not None and told.is_intact and now < told.at + _VALID_S

    def tick(self) -> None:
        """Ask; called at each look at the groups."""
        now = self._loop.time()
        self._told = {key: told for key, told in self._told.items() if now < told.at + _VALID_S}
        for node_id in [each for each in self._wanted if each not in self._asking]:
            self._asking.add(node_id)
            work = self._ask(node_id, sorted(self._wanted.pop(node_id)))
            self._tasks.spawn(work, f"ask node {node_id} for damaged replicas")

    async def _ask(self, node_id: int, raft_groups: list[int]) -> None:
        at = self._loop.time()
        request = LeadersRequest(raft_groups=raft_groups, tell_out_of_sync=True).SerializeToString()
        bytes_max = len(request) + _ANSWER_BYTES * len(raft_groups)
        try:
            answer = await self._call(node_id, PeerMethod.LEADERS, request, _ASK_S)
            told = decode_answer(LeadersResponse, answer, bytes_max)
        except PixyError as error:
            log.debug("a node does not tell if its replicas are intact", node=node_id, reason=str(error))
            return
        finally:
            self._asking.discard(node_id)
        damaged = {each.raft_group for each in told.out_of_sync if node_id in each.nodes}
        for raft_group in raft_groups:
            self._told[node_id, raft_group] = _Told(raft_group not in damaged, at)
