"""A node with a damaged partition, and work that fills its journal."""

from pathlib import Path

from tests.cluster.nodes import Cluster, copy_of

VALUES = [b"%d" % number for number in range(30)]
"""Values of topic `bad`, in the order of their offsets."""


async def damaged(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """Directory of a killed node with a truncated segment, that segment, and its former content."""
    async with Cluster(tmp_path / "data").running() as cluster:
        for topic in ("bad", "good"):
            await cluster.create_topic(topic)
        await cluster.append(*VALUES[:20], topic="bad")
        await cluster.sync()
        await cluster.append(*VALUES[20:], topic="bad")
        directory = copy_of(tmp_path / "data", "crashed")
    (segment,) = (directory / "topics" / "bad-0").glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:100])
    return directory, segment, whole


async def work(cluster: Cluster, count: int) -> None:
    for number in range(count):
        await cluster.append(b"x" * 100, topic="good")
        if number % 10 == 0:
            await cluster.sync()
    await cluster.settle()
