"""The time of a node, noted in its directory for its next start.

`clock` there has the milliseconds since the Unix epoch, as 20 decimal digits. It is overwritten in
place, which needs no space on a full disk, and not synced: a time that is noted too early only
keeps data for an hour longer, see `NodeTime` of `pixy.cluster`.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["note_time", "noted_time"]

_NAME = "clock"
_DIGITS = 20


def noted_time(directory: Path) -> int | None:
    """The time that was noted last, None if there is none that can be read. Blocks."""
    try:
        noted = (directory / _NAME).read_bytes()
    except OSError:
        return None
    return int(noted) if len(noted) == _DIGITS and noted.isdigit() else None


async def note_time(directory: Path, time_ms: Callable[[], int | None], every_s: float = 10.0) -> None:
    """Note the time again and again, as far as it is known."""
    while True:
        now_ms = time_ms()
        if now_ms is not None:
            await asyncio.to_thread(_write, directory / _NAME, now_ms)
        await asyncio.sleep(every_s)


def _write(path: Path, time_ms: int) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # whatever is wrong with the disk, writers say so
    try:
        os.pwrite(file, b"%0*d" % (_DIGITS, time_ms), 0)
    except OSError:
        return
    finally:
        os.close(file)
