"""Data directory of a node that was killed after creating every kind of file, and its contents byte
by byte.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from pixy.inspect import ReadOnlyDisk, Report, Verdict, check_node
from tests.cluster.nodes import Cluster, Sizes, copy_of


def make_stopped(directory: Path) -> Path:
    """A directory with two topics, checkpoints, several segments and journal files, and entries not
    applied yet.
    """

    async def fill() -> Path:
        async with Cluster(directory, Sizes(checkpoint_entries=4, file_bytes=3000)).running() as cluster:
            await cluster.create_topic("topic", 2)
            await cluster.create_topic("other", 1)
            for number in range(40):
                await cluster.append(b"value-%d" % number + b"v" * 300)
                await cluster.commit(number + 1)
            await cluster.append(b"else", topic="other")
            await cluster.sync()
            await cluster.append(b"last", b"unsynced")
            await cluster.settle()
            return copy_of(directory, directory.name + "-killed")

    killed = asyncio.run(fill())
    shutil.rmtree(directory)
    return killed.rename(directory)


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Modification time and bytes of every file."""
    return {
        str(path.relative_to(directory)): (
            path.stat().st_mtime_ns,
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in [directory, *directory.rglob("*")]
    }


def wrong(directory: Path, damage: Callable[[Path], object] = lambda _: None) -> list[tuple[str, str, str]]:
    """Findings of a check that are not ok, after some damage: verdict, place, message. Proves that
    the check changes nothing.
    """
    damage(directory)
    before = contents(directory)
    report: Report = check_node(ReadOnlyDisk(), directory)
    assert contents(directory) == before
    return [
        (str(each.verdict), each.where, each.found) for each in report.findings if each.verdict > Verdict.OK
    ]
