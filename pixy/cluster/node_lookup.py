"""The table of nodes, asked for by a node whose metadata may lag; see `members`.

It asks a node that it is connected to, over a connection that it has dialled: the one that it does
not know, or, when one that it does not know has dialled it, any. One question at a time, and one
every half second at most, whoever comes.
"""

from collections.abc import Awaitable, Callable

import structlog
from google.protobuf.message import DecodeError

from pixy.cluster.members import Members
from pixy.cluster.nodes import node_of
from pixy.cluster.peer_messages import PeerMethod
from pixy.errors import PixyError
from pixy.faults import report_to_loop
from pixy.proto.node_calls_pb2 import NodesResponse
from pixy.tasks import Tasks

__all__ = ["NodeLookup"]

log = structlog.get_logger(__name__)

_ASK_S = 2.0

Call = Callable[[int, int, bytes, float], Awaitable[bytes]]


class NodeLookup:
    """Questions of one node.

    Args:
        members: the other nodes, which are told.
        call: calls a node: id, method, payload, timeout in seconds.
    """

    def __init__(self, members: Members, call: Call) -> None:
        self._members = members
        self._call = call
        # The node that was asked last.
        self._asked = 0
        self._tasks = Tasks(report_to_loop)

    def ask(self, node_id: int) -> None:
        """Ask a node that this one does not know, and has just connected to."""
        self._members.met_unknown = True
        if not self._tasks:
            self._spawn(node_id)

    def tick(self) -> None:
        """Ask a node if one that is not known here has come."""
        if self._members.met_unknown and not self._tasks:
            connected = sorted(each.node_id for each in self._members if each.up)
            if connected:
                self._spawn(next((each for each in connected if each > self._asked), connected[0]))

    async def stop(self) -> None:
        """Ask no more."""
        await self._tasks.cancel_all()

    def _spawn(self, node_id: int) -> None:
        self._asked = node_id
        self._tasks.spawn(self._ask(node_id), "ask for the table of nodes")

    async def _ask(self, node_id: int) -> None:
        try:
            answer = await self._call(node_id, PeerMethod.NODES, b"", _ASK_S)
            nodes = NodesResponse.FromString(answer).nodes
        except (PixyError, DecodeError) as error:
            log.debug("a node does not tell of the others", node=node_id, reason=str(error))
            return
        self._members.met_unknown = False
        self._members.tell(map(node_of, nodes))
