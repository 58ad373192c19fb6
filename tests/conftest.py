"""Fixtures and checks that apply to every test.

Async tests run with asyncio's debug mode on, unless marked `no_debug`, and fail if they leak a task
or if an unexpected exception reaches the event loop. With PYTHONASYNCIODEBUG=1 in the environment
such a failure also shows where the task was created.
"""

import asyncio
import gc
import os
import shutil
import traceback
from asyncio import constants
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from pytest_asyncio import is_async_test

from tests.lanes import longest_first

# The same examples in every run, so that a failure is due to the current change; `explore`
# generates new ones.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("PIXY_HYPOTHESIS", "repeat"))

# Starting a process forks, and grpcio's threads would continue in the fork until it executes its
# program, which occasionally crashes it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Debug mode records the stack of every new callback, future and task, which takes longer than
# running most of them.
_KEEP_STACKS = bool(os.environ.get("PYTHONASYNCIODEBUG"))
if not _KEEP_STACKS:
    constants.DEBUG_STACK_DEPTH = 0  # type: ignore[misc]  # final for programs

_CALL_ENDS_S = 5.0
"""Time that grpcio's client may take to notice the end of a call."""

_SPARK = Path(__file__).parent / "spark"
_BROKERS = {"kafka", "_kafka_three_session", "secured"}
"""Fixtures that start brokers."""

pytest_plugins = ["tests.kafka.fixtures"]


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a release before copies of partitions."""
    monkeypatch.setattr("pixy.cluster.peering.node_peers.COPIES_LEVEL", 1 << 30)


def require(name: str, how_to_get: str) -> str:
    """Path of a program required by a test.

    Without it the test is skipped with a hint on how to get it. With PIXY_REQUIRE_ALL=1 in the
    environment, the test fails instead.
    """
    path = shutil.which(name)
    if path is None:
        missing(name, how_to_get)
    return path


def missing(name: str, how_to_get: str) -> NoReturn:
    """Skip a test that lacks something, or fail it; see `require`."""
    message = f"{name} is missing; get it with: {how_to_get}"
    if os.environ.get("PIXY_REQUIRE_ALL") == "1":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_debug: asyncio's debug mode would distort this test's timing")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        _choose_lane(item)
        if isinstance(item, pytest.Function) and is_async_test(item):
            # First in, last out: it checks after all other fixtures have cleaned up.
            item.fixturenames.insert(0, "_strict_event_loop")
    yield
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = longest_first(items, lambda item: item.get_closest_marker("longest") is not None, workers)


def _choose_lane(item: pytest.Item) -> None:
    """Add the marks that select the lane of a test (`tests.lanes`), before selection by marks."""
    if not item.get_closest_marker("process"):
        return
    if _SPARK in item.path.parents:
        item.add_marker("spark")
    elif isinstance(item, pytest.Function) and not _BROKERS.isdisjoint(item.fixturenames):
        item.add_marker("kafka")


def pytest_collection_finish() -> None:
    _freeze()


def _freeze() -> None:
    """Let the collection at the end of each async test skip what is older than the test (modules,
    reports), which would take it tens of milliseconds.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _look_at_everything_in_the_end() -> Iterator[None]:
    # Unclosed resources fail the last test: a worker of pytest-xdist cannot report those that
    # pytest finds afterwards.
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture
async def _strict_event_loop(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    _freeze()
    loop = asyncio.get_running_loop()
    loop.set_debug(request.node.get_closest_marker("no_debug") is None)
    if not _KEEP_STACKS:
        # Futures and tasks call this, and have no depth limit; the loop itself does not call it.
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
    """The loop's other tasks.

    grpcio's client notices the end of a call, even a cancelled one, only some loop iterations
    later: its tasks get time to end.
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
