"""Nodes of `tests.cluster.drivers`, closed at the end of a test."""

from tests.cluster.conftest import follower, network, node

__all__ = ["follower", "network", "node"]
