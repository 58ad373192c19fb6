"""What the page cache has of a file."""

import os
from pathlib import Path

__all__ = ["forget_pages"]


def forget_pages(path: Path) -> None:
    """Let the next read of a synced file come from the device."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
