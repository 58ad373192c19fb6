"""pixy/serving/busy_poll.py: the next request of a client is looked for, as long as that pays."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from pixy.serving.busy_poll import PAUSE_MAX, POLLS, BusyPoll
from tests.fakes.echo import open_echo, value
from tests.fakes.grpc_client import open_client

CALLS = 300


class NotedSelector(selectors.DefaultSelector):
    """Counts how often the loop waits, and how often it only looks.

    Attributes:
        waited: set when the loop waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self.looks = 0
        self.waited = asyncio.Event()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            self.looks += 1
        else:
            self.waits += 1
            if not self.waited.is_set():
                self.waited.set()
                timeout = 0
        return super().select(timeout)


def in_noted_loop(test: Callable[[NotedSelector], Coroutine[Any, Any, None]]) -> None:
    selector = NotedSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(test(selector))


async def iterations_of(poll: BusyPoll) -> int:
    """Iterations until it ends."""
    iterations = 0
    while poll.active:
        await asyncio.sleep(0)
        iterations += 1
    return iterations


async def polls_among(poll: BusyPoll, answers: int) -> int:
    """Polls that find nothing, for as many answers."""
    polls = 0
    for _ in range(answers):
        poll.answered()
        polls += poll.active
        await iterations_of(poll)
    return polls


async def test_a_poll_ends_after_some_iterations() -> None:
    poll = BusyPoll()
    poll.answered()
    assert await iterations_of(poll) == POLLS


async def test_a_poll_that_found_input_is_followed_by_the_next() -> None:
    poll = BusyPoll()
    for _ in range(10):
        poll.answered()
        assert poll.active
        await asyncio.sleep(0)
        poll.found()
    assert await iterations_of(poll) == 1


async def test_an_answer_to_what_a_poll_found_prolongs_it() -> None:
    poll = BusyPoll()
    poll.answered()
    await asyncio.sleep(0)
    poll.found()
    poll.answered()
    assert await iterations_of(poll) == POLLS


async def test_polls_that_find_nothing_become_rare() -> None:
    poll = BusyPoll()
    assert await polls_among(poll, 2 * PAUSE_MAX) <= 10
    assert await polls_among(poll, 10 * PAUSE_MAX) <= 10


async def test_polls_become_frequent_again_when_they_find_something() -> None:
    poll = BusyPoll()
    await polls_among(poll, 2 * PAUSE_MAX)
    polls = 0
    for _ in range(2 * PAUSE_MAX):
        poll.answered()
        polls += poll.active
        if poll.active:
            poll.found()
            await asyncio.sleep(0)
    assert polls > PAUSE_MAX / 2


def test_the_loop_does_not_wait_for_the_next_call_of_a_client() -> None:
    async def test(selector: NotedSelector) -> None:
        async with open_echo() as echo, open_client(echo.address) as client:
            await client.answer(client.request("/test.Echo/Unary", value(b"first")))
            before = selector.waits
            for _ in range(CALLS):
                await client.answer(client.request("/test.Echo/Unary", value(b"next")))
            assert selector.waits - before < CALLS / 10

    in_noted_loop(test)


def test_a_client_that_calls_seldom_costs_few_polls() -> None:
    async def test(selector: NotedSelector) -> None:
        async with open_echo() as echo, open_client(echo.address) as client:
            before = selector.looks
            for _ in range(CALLS):
                await client.answer(client.request("/test.Echo/Unary", value(b"seldom")))
                selector.waited.clear()
                await selector.waited.wait()
            # About a dozen polls, and a few iterations for each call.
            assert selector.looks - before < CALLS * POLLS / 4

    in_noted_loop(test)
