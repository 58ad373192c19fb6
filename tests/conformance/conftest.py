"""Runs every conformance test on every implementation that can show what the test is about."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pixy.backend import Backend
from tests.conformance.implementations import IMPLEMENTATIONS, Controls, Implementation


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): run only on implementations that have these")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" not in metafunc.fixturenames:
        return
    needed = {each for mark in metafunc.definition.iter_markers("needs") for each in mark.args}
    able = [name for name, each in IMPLEMENTATIONS.items() if needed <= each.capabilities]
    metafunc.parametrize("implementation", [IMPLEMENTATIONS[name] for name in able], ids=able)


@pytest.fixture
async def backend(implementation: Implementation, tmp_path: Path) -> AsyncIterator[Backend]:
    async with implementation.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def controls(implementation: Implementation) -> Controls:
    assert implementation.controls is not None, "this capability needs controls"
    return implementation.controls
