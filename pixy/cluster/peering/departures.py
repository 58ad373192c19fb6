"""Nodes that leave the cluster, and the raft groups that need them until then.

A node that is removed leaves partitions first. Until then it is a member of all state groups, so
that these survive the loss of another node, which may keep a partition from letting it go for good.
It leaves metadata last: a start needs metadata, and takes part in the other groups only behind it.

The leader of a state group does not know partitions of which it has no replica, so it asks the
nodes that have one:

    a partition                                        lets a node go
    -------------------------------------------------  --------------------------------------------
    with a replica here                                by the configuration of its group
    of other nodes                                     once a majority of its replicas have answered

and each node that answers has no partition with that node as a member, and knows that it leaves.
What has been found once stays: a node that is removed gets no replica any more.

A partition that has lost all its replicas needs nobody. A node that has never started has none. A
node of an earlier release cannot be asked, and counts as one that has answered. A node that is lost
answers nothing: it is waited for where it may be needed, until it is forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from google.protobuf.message import DecodeError

from pixy.aio.tasks import Tasks
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.state import DEPARTURES_LEVEL, METADATA_GROUP, MetadataState
from pixy.errors import PixyError
from pixy.faults import OnFault
from pixy.multiraft import FIRST_PARTITION_GROUP, Driver
from pixy.proto.node_calls_pb2 import IsMemberRequest, IsMemberResponse
from pixy.raft.quorum import is_majority

log = structlog.get_logger(__name__)

_ASK_S = 2.0
_PAUSE_S = 0.5

Call = Callable[[int, int, bytes, float], Awaitable[bytes]]


class Departures:
    """Departures from one node's cluster.

    Args:
        driver: of the raft groups here.
        metadata: the nodes and partitions.
        call: calls a node: id, method, payload, timeout in seconds.
        has_all_groups: False while the start has not opened all raft groups of the node.
        on_fault: called with an unexpected exception.
    """

    def __init__(
        self,
        driver: Driver,
        metadata: MetadataState,
        call: Call,
        has_all_groups: Callable[[], bool],
        on_fault: OnFault,
    ) -> None:
        self._driver = driver
        self._metadata = metadata
        self._call = call
        self._has_all_groups = has_all_groups
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(on_fault)
        self._next_round = 0.0
        self._let_go: set[int] = set()

    async def stop(self) -> None:
        """Ask no more."""
        await self._tasks.cancel_all()

    def partitions_let_go(self, leaving: set[int]) -> bool:
        """True if no partition needs these nodes, as far as is known; else the others are asked."""
        if self.are_members(leaving, FIRST_PARTITION_GROUP):
            return False
        needed = [each for each in leaving if each not in self._let_go]
        if needed and self._has_all_groups() and not self._tasks and self._loop.time() >= self._next_round:
            self._tasks.spawn(self._ask_all(needed), "ask for partitions of a node that leaves")
        return not needed

    def answer(self, payload: bytes) -> bytes:
        """Answer another node that asks."""
        node_id = IsMemberRequest.FromString(payload).node_id
        return IsMemberResponse(is_member=self._may_be_member(node_id)).SerializeToString()

    def _may_be_member(self, node_id: int) -> bool:
        node = self._metadata.nodes.get(node_id)
        if node is None or not node.removed or not self._has_all_groups():
            return True  # as far as is known here
        return self.are_members({node_id}, FIRST_PARTITION_GROUP)

    def are_members(self, nodes: set[int], first: int = METADATA_GROUP) -> bool:
        """True if one of these nodes is a member of a raft group here, from this number on."""
        return any(
            group.raft_group >= first and not nodes.isdisjoint(group.storage.conf_state.members)
            for group in self._driver.groups.values()
        )

    async def _ask_all(self, leaving: list[int]) -> None:
        for node_id in leaving:
            if await self._is_let_go(node_id):
                self._let_go.add(node_id)
        self._next_round = self._loop.time() + _PAUSE_S

    async def _is_let_go(self, leaving: int) -> bool:
        own, nodes = self._driver.node_id, self._metadata.nodes
        # One that has never started has no replica, and may wait for this node to leave metadata.
        others = [each for each in self._metadata.started if each != own]
        asked = [each for each in others if nodes[each].feature_level >= DEPARTURES_LEVEL]
        answers: dict[int, bool | None] = dict.fromkeys(others, False)
        told = await asyncio.gather(*(self._ask(each, leaving) for each in asked))
        answers.update(zip(asked, told, strict=True))
        if True in answers.values():
            return False
        answered = {own, *(node_id for node_id, answer in answers.items() if answer is False)}
        known = self._driver.groups
        elsewhere = {
            replicas
            for topic in self._metadata.topics.values()
            for raft_group, replicas in zip(topic.raft_groups, topic.replicas, strict=True)
            if raft_group not in known
        }
        # The last replica of a partition stays in metadata when its node is lost.
        there = [[each for each in replicas if not nodes[each].lost] for replicas in elsewhere]
        return all(is_majority([*answered.intersection(each)], each) for each in there if each)

    async def _ask(self, node_id: int, leaving: int) -> bool | None:
        """True if a partition of a node has the leaving one as a member; None: it does not say."""
        request = IsMemberRequest(node_id=leaving).SerializeToString()
        try:
            answer = await self._call(node_id, PeerMethod.IS_MEMBER, request, _ASK_S)
            return IsMemberResponse.FromString(answer).is_member
        except (PixyError, DecodeError) as error:
            log.debug("a node does not tell who is a member", node=node_id, reason=str(error))
            return None
