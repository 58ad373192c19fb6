"""Long work on the event loop, in steps with other callbacks in between."""

import asyncio
from collections.abc import Iterator

__all__ = ["run_in_steps"]

_ENDED = object()


def run_in_steps(work: Iterator[object]) -> None:
    """Run an iterator to its end, one step per turn of the event loop; the first step at once."""
    if next(work, _ENDED) is not _ENDED:
        asyncio.get_running_loop().call_soon(run_in_steps, work)
