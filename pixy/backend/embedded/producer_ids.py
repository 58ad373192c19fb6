"""Ids of idempotent producers, from blocks that the node takes from metadata.

Nobody gets an id twice, whatever becomes of nodes: the rest of a block is lost with its process.
Callers that find the block used up wait for the next one together.
"""

import asyncio

from pixy.aio.futures import resolve
from pixy.aio.tasks import Tasks
from pixy.cluster import BLOCK_IDS, Node
from pixy.errors import PixyError


class ProducerIds:
    """Producer ids of one node.

    Args:
        node: this node.
        tasks: of the backend.
    """

    def __init__(self, node: Node, tasks: Tasks) -> None:
        self._node = node
        self._tasks = tasks
        self._block = iter(range(0))
        # The error of the block that is being taken, None if there is none.
        self._asked: asyncio.Future[PixyError | None] | None = None

    async def next(self) -> int:
        """A new id.

        Raises:
            FailedPrecondition: a node has an older release.
            Unavailable, DeadlineExceeded: metadata gives none in time.
        """
        while True:
            for producer_id in self._block:
                return producer_id
            if self._asked is None:
                self._asked = asyncio.get_running_loop().create_future()
                self._tasks.spawn(self._take_block(self._asked), "producer ids", self._failed)
            error = await asyncio.shield(self._asked)
            if error is not None:
                raise type(error)(str(error))

    async def _take_block(self, asked: "asyncio.Future[PixyError | None]") -> None:
        try:
            first = await self._node.commands.allocate_producer_ids(BLOCK_IDS)
        except PixyError as error:
            self._failed(error)
            return
        self._asked, self._block = None, iter(range(first, first + BLOCK_IDS))
        resolve(asked, None)

    def _failed(self, error: PixyError) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            resolve(asked, error)
