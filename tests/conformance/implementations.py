"""Implementations under the conformance tests.

An entry of `IMPLEMENTATIONS` adds one: its constructor, and its capabilities beyond the protocol.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

from pixy.backend import Backend, TopicPartition
from pixy.errors import UnknownTopic
from tests.cluster.any_node import AnyNode, LeaderMoves
from tests.cluster.node_clusters import NodeCluster
from tests.conformance.pixy_daemon import open_pixy
from tests.fakes.backend import FakeBackend
from tests.fakes.node import open_embedded
from tests.fakes.waiting import until
from tests.kafka.backends import forget_sinks, open_kafka
from tests.kafka.cluster import KafkaCluster
from tests.kafka.controls import KafkaControls


class Capability(Enum):
    """Capabilities of some implementations only."""

    GAPS = auto()
    """Offsets without records: `Controls.add_gap`, `Controls.add_control_batch`."""

    RETENTION = auto()
    """The log begin offset moves on request: `Controls.move_log_begin`."""

    CORRUPTION = auto()
    """A stored batch can be damaged: `Controls.corrupt`."""

    SECOND_MEMBER = auto()
    """A second call of `join_consumer_group` for the same group makes a second member."""

    ONE_PROCESS = auto()
    """All calls go to one process: they take effect in their order, and its stop finishes them."""

    EXPLICIT_DEFAULTS = auto()
    """An option that is set to its default value is kept."""

    STAGING = auto()
    """Staged writes are published."""

    LONE_NODE = auto()
    """It has one node, which is pixy's own."""


class Controls(Protocol):
    """Direct operations on the cluster, bypassing the backend; required by the capabilities that
    name a method.
    """

    async def add_gap(self, backend: Any, partition: TopicPartition, offsets: int) -> None:
        """Consume `offsets` offsets at the end without storing records."""

    async def add_control_batch(self, backend: Any, partition: TopicPartition) -> None:
        """Append a batch with one offset and no message."""

    async def move_log_begin(self, backend: Any, partition: TopicPartition, begin: int) -> None:
        """Apply retention up to `begin`."""

    async def corrupt(self, backend: Any, partition: TopicPartition, offset: int) -> None:
        """Damage the stored batch with `offset`."""


@dataclass(frozen=True)
class Implementation:
    """One implementation of the protocol.

    `open` takes an empty directory, yields a started backend of a cluster without topics, and stops
    it at the end (a second stop is allowed).

    Args:
        cluster: name of the fixture that starts the cluster behind the implementation; its value is
            passed to `open` and `controls`.
        virtual: it runs on a `VirtualLoop`.
        long: its tests are those of other implementations, again.
    """

    open: Callable[[Path, Any], AbstractAsyncContextManager[Backend]]
    capabilities: frozenset[Capability] = frozenset()
    controls: Callable[[Any], Controls] | None = None
    cluster: str = ""
    virtual: bool = False
    long: bool = False


class _FakeControls:
    def __init__(self, _: None) -> None:
        pass

    async def add_gap(self, backend: FakeBackend, partition: TopicPartition, offsets: int) -> None:
        backend.add_gap(partition, offsets)

    async def add_control_batch(self, backend: FakeBackend, partition: TopicPartition) -> None:
        backend.add_control_batch(partition)

    async def move_log_begin(self, backend: FakeBackend, partition: TopicPartition, begin: int) -> None:
        backend.move_log_begin(partition, begin)

    async def corrupt(self, backend: FakeBackend, partition: TopicPartition, offset: int) -> None:
        backend.corrupt(partition, offset)


@asynccontextmanager
async def _open_fake(_: Path, __: None) -> AsyncIterator[Backend]:
    backend = FakeBackend()
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


@asynccontextmanager
async def _open_embedded(directory: Path, _: None) -> AsyncIterator[Backend]:
    async with open_embedded(directory) as backend:
        yield backend


@asynccontextmanager
async def _open_nodes(directory: Path, _: None) -> AsyncIterator[Backend]:
    cluster = NodeCluster(directory, 3, seed=0)
    try:
        await cluster.start()
        moves = LeaderMoves(cluster)
        backend: Any = AnyNode([node.backend for node in cluster.nodes.values()])
        try:
            yield backend
        finally:
            moves.stop()
        assert moves.faults == []
        assert moves.terms > 0 or moves.asked < _MOVES_WITH_EFFECT
    finally:
        await cluster.stop()
    assert [fault for node in cluster.nodes.values() for fault in node.faults] == []


@asynccontextmanager
async def _open_kafka(directory: Path, cluster: KafkaCluster) -> AsyncIterator[Backend]:
    await forget_sinks(cluster)
    async with open_kafka(cluster, directory=directory / "kafka") as backend:

        async def is_empty() -> bool:
            topics = await backend.list_topics()
            for topic in topics:
                with suppress(UnknownTopic):  # the broker does not know yet that it was deleted
                    await backend.delete_topic(topic.name)
            return not topics

        await until(is_empty)
        yield backend


_MOVES_WITH_EFFECT = 15
"""Moves of leaders of which one at least takes place: a test may end before any does."""
_OURS = frozenset({Capability.SECOND_MEMBER, Capability.EXPLICIT_DEFAULTS, Capability.STAGING})
_ALONE = _OURS | {Capability.ONE_PROCESS, Capability.LONE_NODE}
_OF_PIXY = frozenset({Capability.SECOND_MEMBER, Capability.ONE_PROCESS})

IMPLEMENTATIONS: dict[str, Implementation] = {
    "fake": Implementation(_open_fake, frozenset(Capability), _FakeControls),
    "embedded": Implementation(_open_embedded, _ALONE),
    "nodes": Implementation(_open_nodes, _OURS, virtual=True),
    "kafka": Implementation(
        _open_kafka, frozenset(Capability) - {Capability.LONE_NODE}, KafkaControls, cluster="kafka"
    ),
    "kafka of pixy": Implementation(open_pixy, _OF_PIXY, cluster="pixy_daemon", long=True),
    "kafka of pixy with users": Implementation(
        open_pixy, _OF_PIXY, cluster="pixy_daemon_with_users", long=True
    ),
}
