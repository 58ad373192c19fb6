"""Nodes with one state group, whose followers fetch checkpoints from leaders: Raft messages and
calls are delivered by the test.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.log.replica import PartitionReplica, StateReplica
from pixy.cluster.replicas.state_group_recovery import recover_state_group
from pixy.cluster.snapshots.copy_fetching import CopyFetching
from pixy.cluster.snapshots.fetch_snapshot_codec import WantedSlice, decode_request
from pixy.cluster.snapshots.snapshot_fetching import FetchingOptions, SnapshotFetching
from pixy.cluster.snapshots.snapshot_serving import ServingOptions, SnapshotServing
from pixy.config import StorageConfig
from pixy.errors import CorruptData, Unavailable
from pixy.faults import OnFault
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.state_pb2 import HardState, NodeIdentity
from pixy.raft import Entry, Message
from pixy.storage import CheckpointId, EntryType, load_identity
from tests.cluster.node_logs import open_log
from tests.fakes.disk import RecordingDisk
from tests.fakes.no_pieces import NoPieces
from tests.storage.journals import CLUSTER

GROUP, NAME = 1, "metadata"

Intercept = Callable[[int, WantedSlice], bytes | Exception | None]
"""Gets node and request; returns another answer, an error, or None to let the request pass."""


class Pairs:
    """A state machine of keys and values; an empty value removes a key."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}

    def apply(self, payload: bytes, term: int = 0) -> Any:
        key, value = payload.split(b"=")
        self.pairs.pop(key, None)
        if value:
            self.pairs[key] = value

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        return list(self.pairs.items())

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        self.pairs = dict(records)


def value_of(number: int) -> bytes:
    """A value that does not shrink in a compressed batch."""
    return number.to_bytes(4, "big").hex().encode()


class NoPartitions:
    """Partitions of a node that has none, or none that `Partitions` knows."""

    def __init__(self) -> None:
        self.left_copies: set[int] = set()
        self.damaged_groups: set[int] = set()
        self.on_installed: Callable[[PartitionReplica], None] = lambda _: None
        self.on_departed: Callable[[PartitionReplica], Awaitable[None]] = _no_departure

    def find_replica(self, raft_group: int) -> None:
        """As `Partitions.find_replica`."""

    def set_fault(self, replica: PartitionReplica, error: CorruptData) -> None:
        """As `Partitions.set_fault`."""


async def _no_departure(_: PartitionReplica) -> None:
    raise AssertionError("no replica departs")


async def _no_call(*_: object) -> bytes:
    raise AssertionError("nobody gives copies")


def no_copies(log: NodeLog, on_fault: OnFault) -> CopyFetching:
    """Copies of a node among nodes of a release that knows none."""
    return CopyFetching(log, NoPartitions(), NoPieces(), _no_call, lambda _: False, on_fault)


class StateNode:
    """One process of a node.

    Attributes:
        pairs: its state machine.
        faults: errors that it cannot go on from.
        unexpected: exceptions of downloads.
    """

    log: NodeLog
    replica: StateReplica
    serving: SnapshotServing

    def __init__(self, network: "StateNetwork", node_id: int) -> None:
        self.node_id = node_id
        self.directory = network.directory / str(node_id)
        self.pairs = Pairs()
        self.disk: RecordingDisk
        self.faults: list[BaseException] = []
        self.unexpected: list[BaseException] = []
        self._network = network
        options = FetchingOptions(
            CLUSTER.hex(), node_id, slice_bytes=network.slice_bytes, pause_s=0.0, attempts_max=5
        )
        self.fetching = SnapshotFetching(self._call, options, self.unexpected.append)

    async def start(self) -> None:
        """Recover what the directory has."""
        self.directory.mkdir(parents=True, exist_ok=True)
        load_identity(RecordingDisk(), self.directory, NodeIdentity(cluster_id=CLUSTER, node_id=self.node_id))
        storage = StorageConfig(checkpoint_entries=1 << 20)
        opened = open_log(self.directory, storage=storage, send=self._send, fetch=self._fetch)
        self.log, self.disk, self.faults = opened.log, opened.disk, opened.faults
        self.fetching.attach(self.log, no_copies(self.log, self.unexpected.append))
        voters = HardState(voters=self._network.voters)
        self.replica = await recover_state_group(
            self.log, opened.recovered, GROUP, NAME, self.pairs, voters, self._apply
        )
        self.serving = SnapshotServing(
            CLUSTER.hex(),
            lambda name: self.replica if name == NAME else None,
            self.log.driver,
            self.log.files,
            self._network.serving,
        )

    def _apply(self, replica: StateReplica, entry: Entry) -> Any:
        return replica.apply(entry)

    def _send(self, peer: int, messages: Sequence[tuple[int, Message]]) -> None:
        self._network.wire.extend((self.node_id, peer, group, message) for group, message in messages)

    def _fetch(self, group: RaftGroup, message: Message) -> None:
        self._network.offers.append((self.node_id, message.snapshot.index if message.snapshot else 0))
        self.fetching.fetch(group, message)

    async def _call(self, peer: int, payload: bytes, timeout: float) -> bytes:
        return await self._network.call(self.node_id, peer, payload)

    @property
    def group(self) -> RaftGroup:
        return self.replica.group

    def propose(self, key: bytes, value: bytes) -> None:
        self.log.driver.propose(self.group, EntryType.COMMAND, key + b"=" + value, lambda _: None)

    def checkpoints(self) -> list[str]:
        """Names in the directory of its checkpoints."""
        return self.disk.names(self.replica.store.directory)

    async def end(self) -> None:
        """End the process, as a crash does."""
        await self.fetching.stop()
        self.serving.stop()
        self.log.driver.stop()
        self.log.abandon()


class StateNetwork:
    """Nodes of which all are voters.

    Attributes:
        nodes: by id.
        wire: Raft messages on their way: sender, receiver, group, message.
        cut: nodes without any connection.
        asked: slices that were asked for: node that was asked, and position.
        offers: snapshots that nodes were to fetch: node and index.
        intercept: see `Intercept`.
        call: asks a node for another one.
    """

    def __init__(self, directory: Path, *voters: int, slice_bytes: int = 1000) -> None:
        self.directory = directory
        self.voters = voters
        self.slice_bytes = slice_bytes
        self.serving = ServingOptions()
        self.nodes: dict[int, StateNode] = {}
        self.wire: list[tuple[int, int, int, Message]] = []
        self.cut: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        self.offers: list[tuple[int, int]] = []
        self.intercept: Intercept = lambda *_: None
        self.call: Callable[[int, int, bytes], Awaitable[bytes]] = self._call

    def __getitem__(self, node_id: int) -> StateNode:
        return self.nodes[node_id]

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            node = self.nodes[node_id] = StateNode(self, node_id)
            await node.start()

    async def restart(self, node_id: int) -> StateNode:
        """Replace the process of a node."""
        await self.nodes[node_id].end()
        await self.start(node_id)
        return self.nodes[node_id]

    async def _call(self, sender: int, peer: int, payload: bytes) -> bytes:
        wanted = decode_request(payload)[1].wanted
        assert wanted is not None
        self.asked.append((peer, wanted.position))
        instead = self.intercept(peer, wanted)
        if isinstance(instead, Exception):
            raise instead
        if instead is not None:
            return instead
        if self.cut & {sender, peer}:
            raise Unavailable(f"no connection to node {peer}")
        return await self.nodes[peer].serving.answer(sender, payload)

    def deliver(self) -> bool:
        """Deliver the messages on their way; True if there was one."""
        letters = self.wire[:]
        self.wire.clear()
        for sender, to, group, message in letters:
            if not self.cut & {sender, to}:
                self.nodes[to].log.driver.step(group, message)
        return bool(letters)

    async def run(self) -> None:
        """Deliver until nothing moves."""
        quiet = 0
        while quiet < 50:
            await asyncio.sleep(0)
            for node in self.nodes.values():
                await node.log.journal.drained()
            quiet = 0 if self.deliver() else quiet + 1

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            for node_id, node in self.nodes.items():
                if node_id not in self.cut:
                    node.log.driver.tick()
            await self.run()

    async def elect(self, node_id: int) -> StateNode:
        """Make a node the leader."""
        for node in self.nodes.values():
            if node.group.node is not None:
                node.group.node.forget_leader()
        leader = self.nodes[node_id]
        leader.log.driver.open(leader.group).campaign()
        leader.log.driver.drive(leader.group)
        await self.run()
        assert leader.group.leads
        return leader

    async def write(self, leader: StateNode, first: int, last: int) -> None:
        """Write pairs with these numbers."""
        for number in range(first, last + 1):
            leader.propose(b"%d" % number, value_of(number))
        await self.run()

    async def compact(self, leader: StateNode) -> CheckpointId:
        """Have a leader write a checkpoint, and cut its journal behind it."""
        leader.log.checkpoints.write(leader.replica)
        await self.run()
        leader.group.storage.compact(leader.group.applied_index)
        return leader.replica.checkpoints[-1]

    async def leave_behind(self, follower: int, leader: StateNode, last: int) -> CheckpointId:
        """Write pairs that a follower does not get, and that the journal of the leader loses."""
        self.cut.add(follower)
        await self.write(leader, 1, last)
        id = await self.compact(leader)
        self.cut.discard(follower)
        return id

    async def end(self) -> None:
        for node in self.nodes.values():
            await node.end()
