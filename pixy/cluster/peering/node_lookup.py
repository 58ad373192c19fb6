"""The table of nodes, asked for by a node whose metadata may lag; see `cluster_nodes`.

    this node                                        then
    -----------------------------------------------  -----------------------------------------------
    meets one that it does not know, or is to dial   metadata is read, as a leader has to confirm:
    one that metadata does not know                  what it does not have then is no node
    cannot read it, and has met one                  it asks another node for the table

It asks a node that it is connected to, over a connection that it has dialled: the one that it does
not know, or, when one that it does not know has dialled it, any. One question at a time, and one
every half second at most, whoever comes. An answer with more nodes than a cluster may have is
refused as a whole: each one would be dialled. So is one without this node, of a node that lags too:
what this node was told when it joined is newer.
"""

from collections.abc import Awaitable, Callable

import structlog
from google.protobuf.message import DecodeError

from pixy.aio.tasks import Tasks
from pixy.cluster.peering.cluster_nodes import ClusterNodes
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.state import check_told, node_of
from pixy.errors import FailedPrecondition, PixyError
from pixy.faults import report_to_loop
from pixy.proto.node_calls_pb2 import NodesResponse

log = structlog.get_logger(__name__)

_ASK_S = 2.0
_ANSWER_BYTES_MAX = 1 << 20
"""Nodes of earlier releases also tell of those that have left, however many those are."""

Call = Callable[[int, int, bytes, float], Awaitable[bytes]]

Confirm = Callable[[], Awaitable[bool]]


class NodeLookup:
    """Questions of one node.

    Args:
        members: the other nodes, which are told.
        call: calls a node: id, method, payload, timeout in seconds.
        confirm: waits until metadata has every node that there was before; False if no leader says
            so.
    """

    def __init__(self, members: ClusterNodes, call: Call, confirm: Confirm) -> None:
        self._members = members
        self._call = call
        self._confirm = confirm
        # The node that was asked last.
        self._asked = 0
        self._tasks = Tasks(report_to_loop)

    def ask(self, node_id: int) -> None:
        """Ask a node that this one does not know, and has just connected to."""
        self._members.met_unknown = True
        if not self._tasks:
            self._tasks.spawn(self._look_up(node_id), "look up a node")

    def tick(self) -> None:
        """Look nodes up if one that is not known here has come, or is to be dialled."""
        if (self._members.met_unknown or self._members.has_unknown) and not self._tasks:
            connected = sorted(each.node_id for each in self._members if each.up)
            if connected:
                next_id = next((each for each in connected if each > self._asked), connected[0])
                self._tasks.spawn(self._look_up(next_id), "look up a node")

    async def stop(self) -> None:
        """Ask no more."""
        await self._tasks.cancel_all()

    async def _look_up(self, node_id: int) -> None:
        members = self._members
        met_unknown, members.met_unknown = members.met_unknown, False
        if await self._confirm():
            members.registered_are_all()
        elif met_unknown:
            members.met_unknown |= not await self._ask(node_id)

    async def _ask(self, node_id: int) -> bool:
        """Ask a node for the table of nodes; False if it gives none that can be."""
        self._asked = node_id
        try:
            answer = await self._call(node_id, PeerMethod.NODES, b"", _ASK_S)
            if len(answer) > _ANSWER_BYTES_MAX:
                raise FailedPrecondition(f"{len(answer)} bytes, at most {_ANSWER_BYTES_MAX} are possible")
            nodes = [each for each in NodesResponse.FromString(answer).nodes if not each.lost]
            check_told(nodes)
            if self._members.node_id not in (each.node_id for each in nodes):
                raise FailedPrecondition("its metadata lags: it does not have this node")
        except (PixyError, DecodeError) as error:
            log.debug("a node does not tell of the others", node=node_id, reason=str(error))
            return False
        self._members.tell(map(node_of, nodes))
        return True
