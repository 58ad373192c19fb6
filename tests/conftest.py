"""What holds for every test.

Async tests run with asyncio's debug mode on, unless marked `no_debug`, and fail if they leave a task behind or if an
exception reached the event loop that nobody had asked for. With PYTHONASYNCIODEBUG=1 in the environment such a failure also
says where the task was made.
"""

import asyncio
import gc
import os
import shutil
import traceback
from asyncio import constants
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pytest_asyncio import is_async_test

# The same examples in every run, so that a failure is about the change at hand; `explore` looks for new ones.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("PIXY_HYPOTHESIS", "repeat"))

# A process of ours that starts another one forks, and grpcio's threads would go on in the fork until it begins its program: at times
# that ends it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Debug mode keeps the stack of every callback, future and task that is made, which takes longer than running most of them.
_KEEP_STACKS = bool(os.environ.get("PYTHONASYNCIODEBUG"))
if not _KEEP_STACKS:
    constants.DEBUG_STACK_DEPTH = 0  # type: ignore[misc]  # final for programs

_FREEZE_AFTER = 50
"""Between so many async tests what has come to stay (reports, modules) is taken out of what each looks through at its end."""
_async_tests = count(1)

_CALL_ENDS_S = 5.0
"""So long a call of grpcio's client may take to learn that it has ended."""

_SPARK = Path(__file__).parent / "spark"
_BROKERS = {"kafka", "_kafka_three_session", "secured"}
"""Fixtures that start brokers."""

__all__ = ["require"]

pytest_plugins = ["tests.kafka.fixtures"]


def require(name: str, how_to_get: str) -> str:
    """The path of a program that a test needs.

    Without it the test is skipped, with a line that says how to get it. If PIXY_REQUIRE_ALL=1 is in the environment, the
    test fails instead.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    message = f"{name} is missing; get it with: {how_to_get}"
    if os.environ.get("PIXY_REQUIRE_ALL") == "1":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_debug: asyncio's debug mode would distort this test's timing")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        _choose_lane(item)
        if isinstance(item, pytest.Function) and is_async_test(item):
            # First in, last out: it looks when all other fixtures have cleaned up.
            item.fixturenames.insert(0, "_strict_event_loop")


def _choose_lane(item: pytest.Item) -> None:
    """Mark what decides on the lane of a test (`tests.lanes`), before anybody chooses by marks."""
    if not item.get_closest_marker("process"):
        return
    if _SPARK in item.path.parents:
        item.add_marker("spark")
    elif isinstance(item, pytest.Function) and not _BROKERS.isdisjoint(item.fixturenames):
        item.add_marker("kafka")


def pytest_collection_finish() -> None:
    # What the imports left in memory is not looked at again after every async test: 40 ms become 2.
    _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _look_at_everything_in_the_end() -> Iterator[None]:
    # What nobody has closed fails the last test: what pytest finds afterwards, a worker of pytest-xdist can tell nobody.
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture
async def _strict_event_loop(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    if next(_async_tests) % _FREEZE_AFTER == 0:
        _freeze()
    loop = asyncio.get_running_loop()
    loop.set_debug(request.node.get_closest_marker("no_debug") is None)
    if not _KEEP_STACKS:
        # Futures and tasks ask this, and know no depth; the loop itself does not.
        loop.get_debug = lambda: False  # type: ignore[method-assign]
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    yield
    leaked = await _left_behind()
    descriptions = [repr(task) for task in leaked]
    for task in leaked:
        task.cancel()
    await asyncio.gather(*leaked, return_exceptions=True)
    del leaked
    # Exceptions that nobody retrieved are reported when their task or future is collected.
    gc.collect()
    loop.set_exception_handler(None)
    if descriptions:
        pytest.fail("tasks were left behind:\n" + "\n".join(descriptions), pytrace=False)
    if unhandled:
        lines = [line for context in unhandled for line in _describe(context)]
        pytest.fail("the event loop got exceptions that nobody handled:\n" + "\n".join(lines), pytrace=False)


async def _left_behind() -> set[asyncio.Task[Any]]:
    """The tasks of the loop besides this one.

    grpcio's client learns of the end of a call, even of one that it has cancelled, some turns of the loop later: its tasks have
    a while to end.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if calls := {task for task in tasks if "_AioCall" in repr(task)}:
        ended, _ = await asyncio.wait(calls, timeout=_CALL_ENDS_S)
        tasks -= ended
    return tasks


def _describe(context: dict[str, Any]) -> list[str]:
    exception = context.get("exception")
    if isinstance(exception, BaseException):
        return [context["message"], *traceback.format_exception(exception)]
    return [context["message"], repr(context)]
