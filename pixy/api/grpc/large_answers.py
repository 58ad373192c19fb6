"""Calls whose answers may have thousands of elements: a bound of how many run at a time.

They are built in short steps, between the work of others. If all of a client's calls were begun
together, each would get a step now and then, none would end, and each would hold up to a megabyte
meanwhile. So an address has a few of each method at a time; the others wait with their request
alone. One with many elements waits in bytes (`CallEnvironment.parsed_semaphores`).
"""

import sys
from collections.abc import Callable, Coroutine
from typing import TypeVar

from pixy.aio.address_quota import AddressSemaphore
from pixy.client_address import client_address
from pixy.rpc import UnaryCall

Q = TypeVar("Q")
A = TypeVar("A")

AT_ONCE = 32
"""Running calls of one method and address: enough for small answers, which wait for other nodes."""


def a_few_at_a_time(
    handler: Callable[[Q, UnaryCall], Coroutine[None, None, A]],
) -> Callable[[Q, UnaryCall], Coroutine[None, None, A]]:
    """The handler, of which each address has `AT_ONCE` calls running."""
    turns = AddressSemaphore(sys.maxsize, AT_ONCE)

    async def run(request: Q, call: UnaryCall) -> A:
        async with turns.holding(client_address(call.peer), 1):
            return await handler(request, call)

    return run
