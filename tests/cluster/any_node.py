"""A cluster behind a load balancer: each call of a client goes to another node, while leaders move.

`AnyNode` is the backend that such a client sees. Some calls have no choice:

    appends of a partition          one node, until all of them are answered: calls to several nodes
                                    have no order among them
    commits of a member, and        the node that the member is at: they have the process in common
    offsets that are set
    what is asked without waiting   the node of the last change: others hear of it a moment later

A node serves fetches from its own replica, which may be a little behind what another node has
answered: the first fetch behind an append asks for the offsets before, which waits for them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from random import Random
from typing import Any

from pixy.backend import (
    ConsumerMembership,
    EmbeddedBackend,
    FetchResult,
    OffsetCommit,
    TopicDescription,
    TopicPartition,
)
from pixy.backend.protocol import NO_MARKS, AppendDone, Assignment, OffsetsChanged, Revocation
from pixy.cluster import Node
from pixy.errors import PixyError
from pixy.multiraft.raft_group import RaftGroup
from tests.cluster.node_clusters import NodeCluster

_MOVE_EVERY_S = 0.005


class LeaderMoves:
    """Hands over the leadership of one raft group after the other, at random, until `stop`.

    Args:
        cluster: the cluster, which runs.

    Attributes:
        asked: number of these, granted or not.
        faults: exceptions, after which nothing moves.
    """

    def __init__(self, cluster: NodeCluster) -> None:
        self._cluster = cluster
        self._random = Random(cluster.seed)
        self.asked = 0
        self._terms_at_first = self._terms()
        self.faults: list[Exception] = []
        self._wait()

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def terms(self) -> int:
        """Terms of the state groups since the start, over all nodes."""
        return self._terms() - self._terms_at_first

    def _terms(self) -> int:
        nodes = [each.node for each in self._cluster.nodes.values()]
        return sum(replica.group.term for node in nodes for replica in node.state_groups.replicas())

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_MOVE_EVERY_S, self._move)

    def _move(self) -> None:
        try:
            self._move_one()
        except Exception as fault:
            self.faults.append(fault)
        else:
            self._wait()

    def _move_one(self) -> None:
        node = self._random.choice([each.node for each in self._cluster.nodes.values()])
        led = [group for group in _raft_groups(node) if group.leads]
        if led:
            group = self._random.choice(led)
            others = [each for each in group.storage.conf_state.voters if each != node.node_id]
            if others:
                node._log.driver.transfer(group, self._random.choice(others))
                self.asked += 1


def _raft_groups(node: Node) -> list[RaftGroup]:
    replicas = [*node.state_groups.replicas(), *node.partitions]
    return [replica.group for replica in replicas if replica.group is not None]


class AnyNode:
    """A `Backend`. Descriptions of topics are without what moves: each partition is led by the
    first of its replicas.

    Args:
        nodes: the backends of the nodes.
    """

    def __init__(self, nodes: Sequence[EmbeddedBackend]) -> None:
        self._nodes = nodes
        self._turns = cycle(nodes)
        self._changed = nodes[0]
        # The node that has read committed offsets last.
        self._read = nodes[0]
        # Node and number of the appends that are not answered.
        self._appending: dict[TopicPartition, tuple[EmbeddedBackend, int]] = {}
        # Appends of a partition that were answered, and how many of them a node has.
        self._appended_to: Counter[TopicPartition] = Counter()
        self._has: dict[tuple[EmbeddedBackend, TopicPartition], int] = {}
        self._joined: dict[str, list[tuple[EmbeddedBackend, ConsumerMembership]]] = {}

    def __getattr__(self, name: str) -> Any:
        """A method that has nothing special."""
        return getattr(next(self._turns), name)

    # --- life -------------------------------------------------------------------------------------

    @property
    def fault(self) -> str:
        return next((node.fault for node in self._nodes if node.fault), "")

    @property
    def why_left(self) -> str:
        return ""

    def watch(self, on_change: Callable[[], None]) -> None:
        for node in self._nodes:
            node.watch(on_change)

    async def wait_ready(self) -> None:
        for node in self._nodes:
            await node.wait_ready()

    async def stop(self) -> None:
        """Stop one node after the other, those with work first."""
        busy = [node for node, _ in self._appending.values()]
        for node in sorted(self._nodes, key=lambda node: node not in busy):
            await node.stop()

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicDescription | None:
        found = self._changed.topic(name)
        return None if found is None else _settled(found)

    async def describe_topic(self, name: str) -> TopicDescription:
        return _settled(await next(self._turns).describe_topic(name))

    async def list_topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        return [_settled(found) for found in await next(self._turns).list_topics(names)]

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        self._changed = next(self._turns)
        return _settled(await self._changed.create_topic(name, partitions, config))

    async def alter_topic(self, name: str, **changes: Any) -> TopicDescription:
        self._changed = next(self._turns)
        return _settled(await self._changed.alter_topic(name, **changes))

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        self._changed = next(self._turns)
        await self._changed.delete_topic(name, force=force)

    # --- records ----------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        node, count = self._appending.get(partition, (next(self._turns), 0))
        self._appending[partition] = node, count + 1
        try:
            node.append(partition, batch, records, partial(self._appended, partition, done), age_s)
        except BaseException:
            self._forget(partition)
            raise

    def _appended(self, partition: TopicPartition, done: AppendDone, offset: int, error: Any) -> None:
        self._forget(partition)
        self._appended_to[partition] += 1
        done(offset, error)

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        node = next(self._turns)
        appended = self._appended_to[partition]
        if self._has.get((node, partition), 0) < appended:
            with suppress(PixyError):  # the fetch has it too
                await node.offset_ranges(partition.topic)
            self._has[node, partition] = appended
        return await node.fetch(partition, offset, max_bytes=max_bytes, max_wait=max_wait)

    def _forget(self, partition: TopicPartition) -> None:
        node, count = self._appending.pop(partition)
        if count > 1:
            self._appending[partition] = node, count - 1

    # --- consumer groups --------------------------------------------------------------------------

    async def join_consumer_group(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None = None,
        on_offsets_set: OffsetsChanged | None = None,
    ) -> ConsumerMembership:
        node = next(self._turns)
        membership = await node.join_consumer_group(
            group, client_id, topics, on_assignment, on_revocation, on_offsets_set
        )
        self._joined.setdefault(group, []).append((node, membership))
        return membership

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        set: bool = False,
        begins: bool = False,
        handed_out: Mapping[TopicPartition, int] = NO_MARKS,
    ) -> None:
        joined = self._joined.get(group)
        node = joined[-1][0] if joined else next(self._turns)
        for topic in {key.topic for key in offsets if set}:
            await node.committed_offsets(group, topic)
        await node.commit_offsets(group, offsets, set=set, begins=begins, handed_out=handed_out)

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        self._read = next(self._turns)
        return await self._read.committed_offsets(group, topic)

    joins_at_once = True
    keeps_handed_out = True

    def handed_out(self, group: str, topic: str) -> Mapping[int, int]:
        return self._read.handed_out(group, topic)

    # --- other nodes: to a client they are one ----------------------------------------------------

    may_have_neighbours = False

    def other_owners(self, group: str, topic: str) -> Collection[int]:
        return ()

    def serve_nodes(self, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        for node in self._nodes:
            node.serve_nodes(handler)


def _settled(topic: TopicDescription) -> TopicDescription:
    partitions = tuple(replace(each, leader=each.replicas[0], isr=each.replicas) for each in topic.partitions)
    return replace(topic, partitions=partitions, led_here=())
