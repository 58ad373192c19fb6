"""Greetings of a node to its peers."""

import asyncio
from pathlib import Path
from typing import cast

from pixy.cluster import Node, NodeOptions
from pixy.config import JournalConfig, StorageConfig
from pixy.peers import PeerChannel, PeerHooks
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
