"""Connections that a relay of a test passes on, each by a task."""

import asyncio
from collections.abc import Collection


async def end_connections(connections: Collection[asyncio.Task[None]]) -> None:
    """End everything on the running loop but the caller, before its servers are closed.

    Args:
        connections: the tasks of all connections; more may come meanwhile.
    """
    # Some tasks are accepting a connection, which asyncio would forget with its server.
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in connections:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
