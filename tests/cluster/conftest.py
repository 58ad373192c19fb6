"""Nodes of `drivers`, closed at the end of a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.drivers import DriverNetwork, DriverNode, NodeSetup


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[DriverNode]:
    """A node with the only vote of its group."""
    made = DriverNode(tmp_path / "node").bind()
    yield made
    made.close()


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[DriverNode]:
    """Node 1 of three, without the others."""
    made = DriverNode(tmp_path / "node", setup=NodeSetup((1, 2, 3))).bind()
    yield made
    made.close()


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[DriverNetwork]:
    """Nodes 1, 2 and 3."""
    made = DriverNetwork(tmp_path, 1, 2, 3)
    yield made
    made.close()
