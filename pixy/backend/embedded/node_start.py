"""Start of a node: the part that depends on this machine alone, and the part that waits for other
nodes.

A daemon waits for the first part, and its errors keep it from starting. The second part may take
any time: the other nodes of a join list, or a majority of the cluster. Meanwhile the daemon serves,
and requests are answered UNAVAILABLE with the reason. An error in the second part ends the process.
"""

import asyncio

from pixy.aio.futures import failure_of
from pixy.cluster import Node
from pixy.errors import Unavailable


class NodeStart:
    """Start of one node.

    Args:
        node: not started.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Start the node; returns when it serves, or waits for others.

        Raises:
            StartError, CorruptData: it cannot serve.
        """
        task = self._task = asyncio.create_task(self._node.start(), name="start the node")
        waits = asyncio.create_task(self._node.waits_for_others.wait(), name="watch for other nodes")
        try:
            await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            waits.cancel()
        if task.done():
            task.result()
            self._over.set()
        else:
            task.add_done_callback(self._ended)

    @property
    def is_over(self) -> bool:
        """True once the node serves."""
        return self._node.has_started

    @property
    def fault(self) -> str:
        """Reason why the node waits, empty once it serves."""
        if self.is_over:
            return ""
        return self._node.why_not_started

    def check(self) -> None:
        """Raises Unavailable with the reason until the node serves."""
        if not self._node.has_started:
            raise Unavailable(self.fault)

    async def wait(self) -> None:
        """Return once the node serves."""
        await self._over.wait()

    async def stop(self) -> None:
        """Give up a start that is not over."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = failure_of(task)
        if error is not None:
            self._node.on_fault(error)
        elif not task.cancelled():
            self._over.set()
