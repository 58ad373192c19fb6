"""Decisions of a start about the file `reserve`: one test for each row of the table in
`docs/storage.md`, with its name.
"""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.reserves import SIZE, Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.reserve.stop()


async def taken(bench: Bench) -> None:
    """A start reserves the space, and messages are accepted."""
    bench.reserve.start()
    await bench.step()
    assert (bench.size, bench.blocked) == (SIZE, False)


async def test_absent(bench: Bench) -> None:
    await taken(bench)


async def test_own(bench: Bench) -> None:
    bench.path.write_bytes(bytes(SIZE))
    await taken(bench)


async def test_short(bench: Bench) -> None:
    for size in (0, 1, SIZE - 1):
        bench.path.write_bytes(bytes(size))
        await taken(bench)


async def test_too_long(bench: Bench) -> None:
    bench.path.write_bytes(bytes(SIZE * 3))
    await taken(bench)


async def test_other_content(bench: Bench) -> None:
    bench.path.write_bytes(b"x" * SIZE)
    await taken(bench)


async def test_none_wanted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, size=0)
    bench.path.write_bytes(bytes(SIZE))
    bench.reserve.start()
    await bench.step()
    assert (bench.size, bench.blocked) == (None, False)


async def test_no_room(bench: Bench) -> None:
    for error in (errno.ENOSPC, errno.EDQUOT):
        bench.no_room(error)
        bench.reserve.start()
        await bench.step()
        assert (bench.size, bench.blocked) == (None, True)


async def test_not_possible(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.no_room(errno.EIO)
    bench.reserve.start()
    await bench.step()
    assert (bench.size, bench.blocked) == (None, False)
    assert "the reserve on the disk cannot be changed" in capsys.readouterr().out


async def test_a_directory(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.path.mkdir()
    bench.reserve.start()
    await bench.step()
    assert (bench.path.is_dir(), bench.blocked) == (True, False)
    assert "the reserve on the disk cannot be changed" in capsys.readouterr().out
