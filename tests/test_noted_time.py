"""`pixy.noted_time`: the time of a node outlives it, whatever the disk does."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from pixy.noted_time import note_time, noted_time
from pixy.storage import RealDisk
from tests.fakes.waiting import until

DISK = RealDisk()


def note(directory: Path, time_ms: int | None) -> None:
    """Note a time once."""

    async def until_noted() -> None:
        looked = asyncio.Event()

        def look() -> int | None:
            looked.set()
            return time_ms

        task = asyncio.create_task(note_time(DISK, directory, look))
        await looked.wait()
        if time_ms is not None:
            await until(lambda: noted_time(DISK, directory) == time_ms)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(until_noted())


def test_the_newest_time_is_found(tmp_path: Path) -> None:
    assert noted_time(DISK, tmp_path) is None
    for time_ms in (1_700_000_000_000, 2**52, 0):
        note(tmp_path, time_ms)
    assert (tmp_path / "clock").stat().st_mode & 0o777 == 0o600


def test_a_time_that_is_not_known_is_not_noted(tmp_path: Path) -> None:
    note(tmp_path, None)
    assert not list(tmp_path.iterdir())


async def test_it_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    looks: list[int] = []

    def look() -> int:
        looks.append(1)
        return 1

    task = asyncio.create_task(note_time(DISK, tmp_path / "gone", look, every_s=0.0))
    await until(lambda: len(looks) > 2)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "content", [b"", b"17000000000", b"x" * 29, b"0" * 30, b"-" + b"1" * 28, b"\xff" * 29, b"9" * 20]
)
def test_what_is_no_time_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "clock").write_bytes(content)
    assert noted_time(DISK, tmp_path) is None


def test_a_time_with_a_flipped_bit_is_none(tmp_path: Path) -> None:
    note(tmp_path, 1_700_000_000_000)
    whole = (tmp_path / "clock").read_bytes()
    for at in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        (tmp_path / "clock").write_bytes(damaged)
        assert noted_time(DISK, tmp_path) is None


def test_a_pipe_stops_neither_the_start_nor_the_notes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "clock")
    assert noted_time(DISK, tmp_path) is None

    async def look_twice() -> None:
        looks: list[int] = []

        def look() -> int:
            looks.append(1)
            return 1

        task = asyncio.create_task(note_time(DISK, tmp_path, look, every_s=0.0))
        await until(lambda: len(looks) > 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(look_twice())
