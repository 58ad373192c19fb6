"""A real daemon of a release that moves replicas, and does so soon.

The daemon runs as `Daemon(folder, config, program=MOVING)`. It says that it has the feature level
of moves, and the node that leads metadata acts after seconds instead of half a minute.
"""

from pathlib import Path
from unittest import mock

_ROOT = str(Path(__file__).parents[2])
MOVING = (
    "-c",
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests.integration.moving_daemon import main; main()",
)
"""Program of a `Daemon`."""

PATIENCE_S = 2.0


def main() -> None:
    """The command `pixy`, whose nodes move replicas."""
    from pixy.cli import main as command
    from pixy.cluster.state import MOVES_LEVEL

    with (
        mock.patch("pixy.cluster.peering.cluster_search.FEATURE_LEVEL", MOVES_LEVEL),
        mock.patch("pixy.cluster.peering.node_peers.FEATURE_LEVEL", MOVES_LEVEL),
        mock.patch("pixy.cluster.peering.move_controller.PATIENCE_S", PATIENCE_S),
    ):
        command()
