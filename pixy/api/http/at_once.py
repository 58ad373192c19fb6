"""Requests whose answers may have thousands of elements: a bound of how many run at a time.

As `pixy.api.grpc.large_answers`: an address has a few of each route at a time, because each makes
its answer in steps, and holds up to a megabyte meanwhile.
"""

import sys
from collections.abc import Callable, Coroutine

from pixy.aio.address_quota import AddressSemaphore
from pixy.client_address import client_address
from pixy.web import Answer, Exchange

_AT_ONCE = 32

AnswerRoutine = Callable[[Exchange], Coroutine[None, None, Answer | None]]


def a_few_at_a_time(handler: AnswerRoutine) -> AnswerRoutine:
    """The handler, of which each address has `_AT_ONCE` requests running."""
    turns = AddressSemaphore(sys.maxsize, _AT_ONCE)

    async def run(exchange: Exchange) -> Answer | None:
        async with turns.holding(client_address(exchange.peer), 1):
            return await handler(exchange)

    return run
