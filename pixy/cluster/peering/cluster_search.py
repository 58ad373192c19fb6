"""The way of a node to the other nodes of its cluster, while it does not know where they are.

a new node with a join list    `find`: founds a cluster, or joins the one of the list. It founds
                               none while nodes of a cluster dial it: they know its address, so it
                               has lost its directory
a node that has just joined    the member that let it join has named the others
a start                        `learn`: while nobody is where metadata says, the join list is asked,
                               because all nodes may have new addresses
a new cluster                  `wait_for_founders`: enough nodes hold its first answers
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from google.protobuf.message import DecodeError

from pixy.aio.retries import Backoff
from pixy.cluster.log import ClusterOptions
from pixy.cluster.peering.bootstrap_decision import Formation, Found
from pixy.cluster.peering.cluster_nodes import ClusterNodes
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.replicas import StateGroups
from pixy.cluster.state import FEATURE_LEVEL, FIRST_NODE, check_joined
from pixy.errors import FailedPrecondition, PixyError
from pixy.peers import Address, Hello, PeerChannel
from pixy.proto.node_calls_pb2 import JoinRequest, JoinResponse, NodeAddress
from pixy.proto.state_pb2 import NodeIdentity

log = structlog.get_logger(__name__)

_JOIN_TIMEOUT_S = 10.0
_ASK_TIMEOUT_S = 2.0
_LEARN_PAUSE_S = 0.2
_LEARN_PAUSE_MAX_S = 2.0
_VISITED_S = 10.0
"""Time after which a node of a cluster that has dialled this one dials it no more: more than an
attempt without an answer takes, and the pause behind it.
"""
_FOUNDERS_MAX = 3
_FOUNDERS_PAUSE_S = 0.05


class ClusterSearch:
    """Search of one node.

    Args:
        options: its place in the cluster.
        channel: to the nodes of its join list.
        hello: what it says of itself.

    Attributes:
        waiting_for: what the node waits for at its first start, empty for nothing.
        told: nodes that the member named which let this one join.
    """

    def __init__(self, options: ClusterOptions, channel: PeerChannel, hello: Callable[[], Hello]) -> None:
        self._options = options
        self._channel = channel
        self._hello = hello
        self._loop = asyncio.get_running_loop()
        self._learning: asyncio.Task[None] | None = None
        # Loop time at which a node of a cluster has dialled this one for the last time, and whence.
        self._visited_at = float("-inf")
        self._visitor = ""
        self.waiting_for = ""
        self.told: Sequence[NodeAddress] = ()

    # --- the first start --------------------------------------------------------------------------

    async def find(self, secret: bytes, new_cluster_id: bytes) -> NodeIdentity:
        """Identity of a node at its first start: the founder's, or that of a node that has joined.

        Args:
            secret: of this node, durable.
            new_cluster_id: id of the cluster if this node founds it.
        """
        formation = Formation(self._hello(), self._options.join, self._channel.ask, self._wait_for)
        began = self._loop.time()
        while True:
            decision = Found() if self._options.is_listed_alone else await formation.search()
            if isinstance(decision, Found):
                reason = self._why_not_found(began)
                if reason:
                    formation.wait_for(reason)
                    await formation.pause()
                    continue
                log.info("founding a cluster", cluster=self._options.name)
                return NodeIdentity(
                    cluster_id=new_cluster_id,
                    node_id=FIRST_NODE,
                    secret=secret,
                    feature_level=FEATURE_LEVEL,
                )
            try:
                joined = await self._join(decision.address, secret)
            except (PixyError, OSError) as error:
                formation.wait_for(f"{decision.address} does not let this node join yet: {error}")
                await formation.pause()
                continue
            log.info("joined a cluster", cluster=self._options.name, node=joined.node_id)
            self.told = joined.nodes
            return NodeIdentity(
                cluster_id=joined.cluster_id,
                node_id=joined.node_id,
                secret=secret,
                feature_level=joined.feature_level,
            )

    def visited(self, host: str) -> None:
        """A node of a cluster of this name has dialled this one."""
        self._visited_at, self._visitor = self._loop.time(), host

    def _why_not_found(self, began: float) -> str:
        """Reason to found no cluster yet, empty if there is none.

        Args:
            began: loop time at which the search began.
        """
        now = self._loop.time()
        if now - self._visited_at < _VISITED_S:
            return (
                f"a node of a cluster of this name, at {self._visitor}, dials this one: its data directory is lost, or not "
                "mounted. It founds no second cluster. With that node in cluster.join it joins as a new node"
            )
        if now - began < self._options.look_s:
            return "nodes of a cluster may know this one: they would dial it within seconds"
        return ""

    def _wait_for(self, reason: str) -> None:
        self.waiting_for = reason

    async def _join(self, address: Address, secret: bytes) -> JoinResponse:
        options = self._options
        request = JoinRequest(
            secret=secret,
            address=options.address,
            grpc_address=options.grpc_address,
            rack=options.rack,
            version=options.version,
            feature_level=FEATURE_LEVEL,
        )
        payload = request.SerializeToString()
        answer = await self._channel.call_address(address, PeerMethod.JOIN, payload, _JOIN_TIMEOUT_S)
        try:
            joined = JoinResponse.FromString(answer)
        except DecodeError as error:
            raise FailedPrecondition("it gives an answer that cannot be parsed") from error
        check_joined(joined)
        return joined

    async def wait_for_founders(self, groups: StateGroups) -> None:
        """Wait until a new cluster has as many nodes as its answers have to be durable on.

        They must be voters of every state group: else one disk alone would hold the answers.
        """
        count = min(len(self._options.join), _FOUNDERS_MAX)
        while not _has_founders(groups, count):
            self.waiting_for = f"{count} nodes of the join list have to be there before the first answer"
            await asyncio.sleep(_FOUNDERS_PAUSE_S)
        self.waiting_for = ""

    # --- other starts -----------------------------------------------------------------------------

    def learn(self, members: ClusterNodes, cluster_id: bytes) -> None:
        """Ask the join list for nodes of the cluster, until one is connected. The others learn of
        this node's address when it connects to them.
        """
        if self._options.has_join_list:
            self._learning = asyncio.create_task(
                self._learn(members, cluster_id), name="learn the peers' addresses"
            )

    async def _learn(self, members: ClusterNodes, cluster_id: bytes) -> None:
        pauses = Backoff(_LEARN_PAUSE_S, _LEARN_PAUSE_MAX_S)
        if list(members):
            # They may be where they were.
            await asyncio.sleep(pauses.grow())
        while not members.is_connected:
            await asyncio.gather(*(self._look_at(each, members, cluster_id) for each in self._options.join))
            await asyncio.sleep(pauses.grow())

    async def _look_at(self, address: Address, members: ClusterNodes, cluster_id: bytes) -> None:
        with suppress(OSError, PixyError):
            hello = await self._channel.ask(address, _ASK_TIMEOUT_S)
            if hello.cluster_id == cluster_id and hello.node_id:
                members.add_address(hello.node_id, hello.address)

    def stop(self) -> None:
        """Search no more."""
        if self._learning is not None:
            self._learning.cancel()


def _has_founders(groups: StateGroups, count: int) -> bool:
    nodes = groups.metadata.nodes
    if len(nodes) < count:
        return False
    # Some may have left since.
    voters = min(count, sum(not node.removed for node in nodes.values()))
    return all(len(each.group.storage.conf_state.voters) >= voters for each in groups.replicas())
