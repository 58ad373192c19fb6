"""A real daemon that moves replicas soon.

The daemon runs as `Daemon(folder, config, program=MOVING)`. The node that leads metadata acts after
seconds instead of half a minute.
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
    """The command `pixy`, whose nodes move replicas soon."""
    from pixy.cli import main as command

    with mock.patch("pixy.cluster.peering.move_controller.PATIENCE_S", PATIENCE_S):
        command()
