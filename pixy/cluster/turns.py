"""Work on the event loop that is too long for one turn of it: others come in between."""

import asyncio
from collections.abc import Iterator

__all__ = ["in_turns"]

_ENDED = object()


def in_turns(work: Iterator[object]) -> None:
    """Run an iterator to its end, one step in each turn of the loop; the first one at once."""
    if next(work, _ENDED) is not _ENDED:
        asyncio.get_running_loop().call_soon(in_turns, work)
