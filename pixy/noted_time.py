"""The time of a node, noted in its directory for its next start.

`clock` there has the milliseconds since the Unix epoch, as 20 decimal digits, a space, and their
CRC-32C as 8 hexadecimal ones. It is overwritten in place, which needs no space on a full disk, and
not synced: a time that is noted too early only keeps data for an hour longer, see `NodeTime` of
`pixy.cluster`.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pixy.records import crc32c
from pixy.storage import Disk, read_whole

_NAME = "clock"
_DIGITS = 20
_BYTES = _DIGITS + 9


def noted_time(disk: Disk, directory: Path) -> int | None:
    """The time that was noted last, None if there is none that can be read. Blocks."""
    try:
        noted = read_whole(disk, directory / _NAME, _BYTES)
    except OSError:
        return None
    digits = noted[:_DIGITS]
    return int(digits) if digits.isdigit() and noted == _with_checksum(digits) else None


async def note_time(
    disk: Disk, directory: Path, time_ms: Callable[[], int | None], every_s: float = 10.0
) -> None:
    """Note the time again and again, as far as it is known."""
    while True:
        now_ms = time_ms()
        if now_ms is not None:
            await asyncio.to_thread(_write, disk, directory / _NAME, now_ms)
        await asyncio.sleep(every_s)


def _write(disk: Disk, path: Path, time_ms: int) -> None:
    # Whatever is wrong with the disk, those who write data say so.
    with suppress(OSError):
        file = disk.open(path, create=True)
        try:
            file.write_at([_with_checksum(b"%0*d" % (_DIGITS, time_ms))], 0)
        finally:
            file.close()


def _with_checksum(digits: bytes) -> bytes:
    return b"%b %08x" % (digits, crc32c(digits))
