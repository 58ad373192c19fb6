"""File descriptors that nobody closes twice."""

import asyncio
import gc
import os
from pathlib import Path


class Descriptors:
    """Files that take the descriptors that become free."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[tuple[int, os.stat_result]] = []

    async def take(self) -> None:
        """Take some, in one iteration of the event loop after the other."""
        for _ in range(50):
            descriptor = os.open(self._folder / f"{len(self._files)}", os.O_RDWR | os.O_CREAT)
            self._files.append((descriptor, os.fstat(descriptor)))
            gc.collect()
            await asyncio.sleep(0.001)

    def check(self) -> None:
        """Nobody else has closed one of them."""
        for descriptor, status in self._files:
            assert os.path.samestat(os.fstat(descriptor), status)
            os.close(descriptor)
