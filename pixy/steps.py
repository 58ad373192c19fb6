"""Long work on the event loop, in steps with other callbacks in between."""

import asyncio
from collections.abc import Iterator

__all__ = ["run_in_steps"]

_ENDED = object()


def run_in_steps(work: Iterator[object]) -> None:
    """Run an iterator to its end, the first step at once, then one per iteration of the loop."""
    if next(work, _ENDED) is not _ENDED:
        asyncio.get_running_loop().call_soon(run_in_steps, work)
