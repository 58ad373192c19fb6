"""Greetings of a node to its peers."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from pixy.cluster import Node, NodeOptions
from pixy.cluster.peering import cluster_search, node_peers
from pixy.cluster.state.nodes import FEATURE_LEVEL
from pixy.config import JournalConfig, StorageConfig
from pixy.peers import Address, PeerChannel, PeerHooks
from pixy.peers.frames import HELLO, REFUSED, PeerFrameReader, frame_head
from pixy.peers.hello import Greeting, begins_first
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.cluster.nodes import Cluster
from tests.fakes.clock import FakeClock
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import InlineWorker, StepWorker


class SilentChannel:
    """A channel of a node without peers."""

    async def stop(self) -> None:
        """Nothing is connected."""


async def test_a_node_says_whose_it_is_while_it_reads_its_directory(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running() as before:
        node_id = before.node.node_id
    hooks: list[PeerHooks] = []

    def open_channel(_: str, given: PeerHooks) -> PeerChannel:
        hooks.append(given)
        return cast(PeerChannel, SilentChannel())

    files = StepWorker()
    options = NodeOptions(
        tmp_path,
        JournalConfig(),
        StorageConfig(reserve_bytes=0),
        bytes,
        lambda name, **_: files if name == "pixy-files" else InlineWorker(name),
    )
    node = Node(RecordingDisk(), FakeClock(), options, lambda _: None, open_channel)
    start = asyncio.create_task(node.start())
    await files.wait()
    files.step()
    await files.wait()
    hello = hooks[0].hello()
    assert hello.cluster_id != b""
    assert hello.node_id == 0, f"node {node_id} may not be named before its incarnation is durable"
    start.cancel()
    await asyncio.wait({start})


class Stranger(asyncio.Protocol):
    """A side of connections that refuses whatever is not of protocol 1, and notes greetings of it.

    Args:
        greetings: get them.
    """

    def __init__(self, greetings: list[Greeting]) -> None:
        self._greetings = greetings
        self._frames = PeerFrameReader(1 << 20)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._frames.buffer()[: len(data)] = data
        for kind, *_, payload in self._frames.received(len(data)):
            if kind == HELLO and begins_first(payload):
                self._greetings.append(Greeting.decode(payload))
            else:
                reason = b"speak protocol 1"
                self._transport.write(frame_head(REFUSED, 0, 0, 0, [reason], len(reason)) + reason)
                self._transport.close()


async def take_the_place(node: ClusterNode) -> list[Greeting]:
    """Greetings of protocol 1 that a stranger gets who listens where a node was."""
    greetings: list[Greeting] = []
    process = node.cluster.network.process(node.host)
    await process.listen(lambda: Stranger(greetings), Address(node.host, 19094))
    return greetings


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, FEATURE_LEVEL])
def test_only_in_a_cluster_of_older_releases_a_node_that_joins_shows_its_secret(
    tmp_path: Path, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cluster_search, node_peers):
        monkeypatch.setattr(module, "FEATURE_LEVEL", level)

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[3].kill()
        greetings = await take_the_place(cluster[3])
        added = await cluster.add()
        await asyncio.sleep(5)
        await added.kill()
        await added.begin()
        await asyncio.sleep(5)
        named = {(each.hello.node_id, len(each.hello.secret)) for each in greetings if each.hello.node_id}
        expected = set() if level > 1 else {(node.id, 16) for node in (cluster[1], cluster[2], added)}
        assert named == expected

    run_cluster(scenario, tmp_path)
