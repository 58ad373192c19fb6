"""A daemon whose copies take no notice of clients: as fast as they can be, in large chunks."""

from pathlib import Path

from pixy.cli import main
from pixy.cluster.log import NodeLog
from pixy.copies import TokenBucket

_ROOT = str(Path(__file__).parents[2])
UNPACED = (
    "-c",
    f"import sys; sys.path.insert(0, {_ROOT!r}); from bench.copies.unpaced import run; run()",
)
"""Program of a `Daemon`."""


def run() -> None:
    """Run pixy's command."""
    TokenBucket.take = lambda *_: 0.0  # type: ignore[method-assign]  # what the options do not offer
    NodeLog.clients_write = False  # type: ignore[assignment,method-assign]  # the same
    main()
