"""Runs every conformance test on every implementation with the capabilities that the test needs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pixy.backend import Backend
from pixy.clock import Clock, SystemClock
from tests.conformance.implementations import IMPLEMENTATIONS, Controls, Implementation
from tests.conformance.pixy_daemon import running_pixy
from tests.fakes.clock import FakeClock
from tests.integration.daemon import Daemon
from tests.sim.loop import VirtualLoop


class _Loops:
    """Makes the event loop of each test.

    Attributes:
        virtual: the present test runs on one with virtual time.
    """

    virtual = False

    def make(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop() if self.virtual else asyncio.new_event_loop()


_loops = _Loops()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): run only on implementations that have these")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" not in metafunc.fixturenames:
        return
    needed = {each for mark in metafunc.definition.iter_markers("needs") for each in mark.args}
    able = [
        pytest.param(each, id=name, marks=_marks(each))
        for name, each in IMPLEMENTATIONS.items()
        if needed <= each.capabilities
    ]
    metafunc.parametrize("implementation", able)


def _marks(implementation: Implementation) -> list[pytest.MarkDecorator]:
    if implementation.long:
        return [pytest.mark.process, pytest.mark.long]
    if implementation.cluster:
        return [pytest.mark.process, pytest.mark.kafka]
    return [pytest.mark.slow] if implementation.virtual else []


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"loop": _loops.make}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    _loops.virtual = item.callspec.params["implementation"].virtual


@pytest.fixture(scope="session")
def pixy_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the Kafka API."""
    with running_pixy(tmp_path_factory.mktemp("pixy"), users=False) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def pixy_daemon_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the Kafka API, whose clients log in."""
    with running_pixy(tmp_path_factory.mktemp("pixy-with-users"), users=True) as daemon:
        yield daemon


@pytest.fixture
def cluster(implementation: Implementation, request: pytest.FixtureRequest) -> Any:
    """The cluster behind the implementation, started once per run."""
    return request.getfixturevalue(implementation.cluster) if implementation.cluster else None


@pytest.fixture
async def backend(implementation: Implementation, cluster: Any, tmp_path: Path) -> AsyncIterator[Backend]:
    async with implementation.open(tmp_path, cluster) as opened:
        yield opened


@pytest.fixture
async def clock(implementation: Implementation) -> Clock:
    """The clock of the event loop."""
    if not implementation.virtual:
        return SystemClock()
    clock = FakeClock()
    clock.follow(asyncio.get_running_loop())
    return clock


@pytest.fixture
def controls(implementation: Implementation, cluster: Any) -> Controls:
    assert implementation.controls is not None, "this capability needs controls"
    return implementation.controls(cluster)
