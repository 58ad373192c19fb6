"""Staged writes of an embedded cluster, at one of its nodes: checks what callers name, and passes
it on to the node.
"""

import asyncio
from collections.abc import Callable, Sequence

from pixy.backend.embedded.partition_router import PartitionRouter
from pixy.cluster import Node, PeerMethod, Topic, staged_error
from pixy.errors import DeadlineExceeded, Unavailable
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import StagedRequest, StagedResponse
from pixy.staging import (
    NO_CLIENT,
    PieceBatches,
    Published,
    StageCall,
    StageClient,
    StagedBatches,
    StageName,
    StageSeal,
    publish_command,
)

_ASK_S = 5.0
_SINKS_BYTES_MAX = 4 << 20
"""Of the names of all sinks with stages."""


class NodeStaging:
    """Staged writes of one node.

    Args:
        node: this node.
        finder: of partitions.
        check_running: raises unless the node is there for clients.
        check_writable: raises if nothing can be written.
    """

    def __init__(
        self,
        node: Node,
        finder: PartitionRouter,
        check_running: Callable[[], None],
        check_writable: Callable[[], None],
    ) -> None:
        self._node = node
        self._finder = finder
        self._check_running = check_running
        self._check_writable = check_writable

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
        client: StageClient = NO_CLIENT,
    ) -> int:
        """As `StagedWrites.stage`."""
        self._check_running()
        # A sink that retries while nothing can be written is active: its stages must not expire.
        self._node.staging.touch(sink_id)
        self._check_writable()
        await self._finder.check_known([each.partition for each in batches])
        topics = self._node.metadata.topics
        pieces = []
        for partition, data, records in batches:
            topic, number = partition
            pieces.append(PieceBatches(topic, topics[topic].topic_id, number, data, records))
        call = StageCall(StageName(sink_id, stage_id), piece, pieces, seal, client)
        return await self._node.staging.stage(call)

    async def check_none_elsewhere(self, topic: Topic) -> None:
        """Check that no other node has unpublished records of a topic that is to be deleted. This
        node knows of those with replicas afterwards.

        Raises:
            FailedPrecondition: one has.
            Unavailable: one may have, and does not answer.
        """
        if not self._node.is_alone:
            await self._node.staging.confirm()
        here, nodes = self._node.node_id, self._node.metadata.nodes
        alone = {replicas[0] for replicas in set(topic.replicas) if not replicas[1:]}
        elsewhere = [each for each in sorted(alone) if each != here and not nodes[each].removed]
        for found in await asyncio.gather(*(self._staged_at(node_id, topic) for node_id in elsewhere)):
            if found:
                raise staged_error(topic, found)

    async def _staged_at(self, node_id: int, topic: Topic) -> Sequence[str]:
        calls = self._node.calls
        assert calls is not None, "a node without peers has all partitions"
        request = StagedRequest(topic_id=topic.topic_id).SerializeToString()
        try:
            answer = await calls.ask(node_id, PeerMethod.STAGED, request, _ASK_S)
        except (Unavailable, DeadlineExceeded) as error:
            raise Unavailable(
                f"node {node_id} may have staged records of topic {topic.name}, and does not answer ({error}); force deletes "
                "the topic with them"
            ) from error
        return decode_answer(StagedResponse, answer, _SINKS_BYTES_MAX).sinks

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
        client: StageClient = NO_CLIENT,
    ) -> Published:
        """As `StagedWrites.publish`."""
        self._check_running()
        self._node.staging.touch(sink_id)
        self._check_writable()
        command = publish_command(
            sink_id, epoch, query_id, stage_ids, reset=reset, replaces=replaces, client=client
        )
        return await self._node.staging.publish(command, client)

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        """As `StagedWrites.discard`."""
        self._check_running()
        await self._node.staging.discard(sink_id, stage_ids)
