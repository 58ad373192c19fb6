"""Clusters of several nodes in one event loop with virtual time: on a simulated network, without
threads, each node with its backend.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pixy.backend import EmbeddedBackend, FetchResult, TopicPartition
from pixy.cluster import ClusterOptions, Node, NodeOptions
from pixy.config import JournalConfig, LimitsConfig, StagingConfig, StorageConfig
from pixy.errors import PixyError
from pixy.multiraft import frame_bytes_max
from pixy.peers import Address, PeerOptions, Peers
from pixy.records import NewRecord, build_batch, read_records
from pixy.storage import MakeWorker
from tests.fakes.clock import FakeClock
from tests.fakes.disk import RecordingDisk
from tests.fakes.network import SimulatedNetwork, SimulatedProcess
from tests.fakes.worker import StallingDisk
from tests.sim.loop import VirtualLoop

_PORT = 19094
_DELAYS_S = (0.0005, 0.002)
_LONGEST_S = 600.0
"""Longest run, in virtual time."""
_JOURNAL = JournalConfig(file_bytes=1 << 20)
_STORAGE = StorageConfig(reserve_bytes=0)
_NOBODY = 99
"""A host without a node."""


def host_of(number: int) -> str:
    """Host of a node."""
    return f"127.0.0.{number}"


class ClusterNode:
    """A node of a cluster: the process that runs on its data directory at the moment.

    Args:
        cluster: the cluster.
        number: of the host at first. Nodes that found a cluster together get ids in the order of
            joining.

    Attributes:
        disk, clock: of its machine.
        stalling: stalls its disk.
        host: of the machine; another one from the next start on.
        max_message_bytes: `producer.max_message_bytes` from the next start on; 0: it does not tell.
        faults: errors that would end the process.
        node, backend: of the present process.
    """

    def __init__(self, cluster: "NodeCluster", number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.host = host_of(number)
        self.max_message_bytes = 0
        self.disk = RecordingDisk()
        self.stalling = StallingDisk()
        self.clock = FakeClock()
        self.clock.follow(asyncio.get_running_loop())
        self.faults: list[BaseException] = []
        self.node: Node
        self.backend: EmbeddedBackend
        self._process: SimulatedProcess
        self._peers: Peers
        self._lives = 0

    @property
    def id(self) -> int:
        """Id of the node."""
        return self.node.node_id

    async def begin(self, *, has_peers: bool = True) -> None:
        """Start a process; it may wait for other nodes yet.

        Args:
            has_peers: False for one without a peer address.
        """
        self._lives += 1
        cluster = self.cluster
        seed = f"{cluster.seed} {self.number} {self._lives}"
        self._process = cluster.network.process(self.host)
        largest = frame_bytes_max(self.max_message_bytes)
        options = PeerOptions(Address(self.host, _PORT), mutual_tls=True, main_bytes_max=largest)
        self._peers = Peers(self._process, options, Random(seed), self.faults.append)
        await self._peers.start()
        self.node = Node(
            self.disk,
            self.clock,
            self._node_options(Random(f"ids {seed}").randbytes, self.stalling.worker),
            self.faults.append,
            self._peers.channel if has_peers else None,
        )
        self.backend = EmbeddedBackend(self.node)
        await self.backend.start()

    def _node_options(self, random_bytes: Callable[[int], bytes], worker: MakeWorker) -> NodeOptions:
        return NodeOptions(
            self.cluster.directory / str(self.number),
            self.cluster.journal,
            self.cluster.storage,
            random_bytes,
            worker,
            staging=self.cluster.staging,
            limits=self.cluster.limits,
            cluster=ClusterOptions(
                name="default",
                join=self.cluster.join_list(self.number),
                address=str(Address(self.host, _PORT)),
                grpc_address=f"{self.host}:19091",
                version="1.0",
                max_message_bytes=self.max_message_bytes,
                look_s=self.cluster.look_s,
                replace_after_s=self.cluster.replace_after_s,
            ),
        )

    async def start(self) -> None:
        """Start a process and wait until it serves."""
        await self.begin()
        await self.backend.wait_ready()

    async def stop(self) -> None:
        """End the process in good order, if there is one."""
        if self._lives:
            await self.backend.stop()
            await self._peers.stop()

    async def kill(self) -> None:
        """End the process as others see it after a kill: at once, and without a word."""
        self._process.kill()
        await self.stop()

    # --- requests ---------------------------------------------------------------------------------

    def append_nowait(
        self, *values: bytes, topic: str = "topic", partition: int = 0, key: bytes | None = None
    ) -> asyncio.Future[int]:
        """Append a batch; the result is the offset of its first record."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(offset: int, error: PixyError | None) -> None:
            if error is None:
                answer.set_result(offset)
            else:
                answer.set_exception(error)

        batch = build_batch([NewRecord(key, value, (), self.node.time.wall_ms()) for value in values])
        self.backend.append(TopicPartition(topic, partition), batch, len(values), done)
        return answer

    async def append(self, *values: bytes, topic: str = "topic", partition: int = 0) -> int:
        """As `append_nowait`."""
        return await self.append_nowait(*values, topic=topic, partition=partition)

    async def fetch(
        self, offset: int = 0, *, topic: str = "topic", partition: int = 0, max_wait: float | None = 0
    ) -> FetchResult:
        """Fetch what there is."""
        where = TopicPartition(topic, partition)
        return await self.backend.fetch(where, offset, max_bytes=1 << 20, max_wait=max_wait)

    async def values(self, *, topic: str = "topic", partition: int = 0) -> list[bytes]:
        """All records of a partition as this node serves them."""
        ranges = await self.backend.offset_ranges(topic)
        at, end = ranges[partition].begin, ranges[partition].end
        values: list[bytes] = []
        while at < end:
            found = await self.fetch(at, topic=topic, partition=partition)
            values += [record.value or b"" for batch in found.batches for record in read_records(batch)]
            at = found.next_offset
        return values


class NodeCluster:
    """Nodes 1 to `count`, which find each other by one join list.

    Attributes:
        network: between them.
        journal, storage, staging, limits: options of a process that starts.
        nodes: by the number of their host, which need not be the id.
        lists: numbers in the join lists of nodes that have other ones.
        look_s, replace_after_s: see `ClusterOptions`.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        seed: int,
        journal: JournalConfig = _JOURNAL,
        storage: StorageConfig = _STORAGE,
        staging: StagingConfig | None = None,
        limits: LimitsConfig | None = None,
    ) -> None:
        self.limits = limits or LimitsConfig()
        self.journal = journal
        self.storage = storage
        self.staging = staging or StagingConfig()
        self.directory = directory
        self.seed = seed
        self.network = SimulatedNetwork(Random(seed), _DELAYS_S)
        self.lists: dict[int, Sequence[int]] = {}
        self.look_s = 0.0
        self.replace_after_s = 900.0
        self._founders = range(1, count + 1)
        self.nodes = {number: ClusterNode(self, number) for number in self._founders}

    def __getitem__(self, number: int) -> ClusterNode:
        return self.nodes[number]

    def join_list(self, number: int) -> tuple[Address, ...]:
        """Join list of a node. A founder that is alone has none."""
        numbers: Sequence[int] = [*self._founders]
        if number in self.lists:
            numbers = self.lists[number]
        elif len(numbers) == 1:
            numbers = [] if number == 1 else [1, _NOBODY]
        hosts = [self.nodes[each].host if each in self.nodes else host_of(each) for each in numbers]
        return tuple(sorted(Address(host, _PORT) for host in hosts))

    async def start(self) -> None:
        """Start all nodes together."""
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    async def stop(self) -> None:
        """Stop all nodes together."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    async def add(self) -> ClusterNode:
        """Start a further node, which joins."""
        number = max(self.nodes) + 1
        node = self.nodes[number] = ClusterNode(self, number)
        await node.start()
        return node

    def by_id(self, node_id: int) -> ClusterNode:
        """The node with an id."""
        return next(node for node in self.nodes.values() if node.id == node_id)

    def split(self, *numbers: int) -> None:
        """Cut these nodes off from the others."""
        others = [node.host for number, node in self.nodes.items() if number not in numbers]
        self.network.split([self.nodes[number].host for number in numbers], others)


Scenario = Callable[[NodeCluster], Awaitable[None]]


def run_cluster(
    scenario: Scenario,
    directory: Path,
    count: int = 3,
    *,
    seed: int = 0,
    starts: bool = True,
    **options: Any,
) -> None:
    """Run a scenario with nodes that serve, or were not started; stop what runs.

    Args:
        options: of the `NodeCluster`.
    """
    unhandled: list[dict[str, Any]] = []

    async def run() -> None:
        cluster = NodeCluster(directory, count, seed, **options)
        async with asyncio.timeout(_LONGEST_S):
            try:
                if starts:
                    await cluster.start()
                await scenario(cluster)
            finally:
                cluster.network.heal()
                await cluster.stop()
        assert [fault for node in cluster.nodes.values() for fault in node.faults] == []

    loop = VirtualLoop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert unhandled == []


def leaders(nodes: Sequence[ClusterNode], topic: str = "topic") -> list[set[int]]:
    """Leaders of each partition of a topic, as these nodes describe it."""
    described = [node.backend.topic(topic) for node in nodes]
    assert all(described)
    found = [description.partitions for description in described if description is not None]
    return [{each.leader for each in partitions} for partitions in zip(*found, strict=True)]
