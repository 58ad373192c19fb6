"""Staged writes to the partitions of one node.

A stage is a file of the node that has accepted it, and is published by a reference to it. So in a
cluster of several nodes a stage can be for those partitions only whose one replica is on this node.
"""

from collections.abc import Callable, Sequence

from pixy.backend.partition_finder import PartitionFinder
from pixy.backend.protocol import Published, StagedBatches, StageSeal
from pixy.cluster import Node
from pixy.errors import FailedPrecondition
from pixy.records import TopicPartition
from pixy.staging import PieceBatches, StageName

__all__ = ["NodeStaging"]


class NodeStaging:
    """Staged writes of one node.

    Args:
        node: this node.
        finder: of partitions.
        check_writable: raises if nothing can be written.
    """

    def __init__(self, node: Node, finder: PartitionFinder, check_writable: Callable[[], None]) -> None:
        self._node = node
        self._finder = finder
        self._check_writable = check_writable

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None,
    ) -> int:
        """As `StagedWrites.stage`.

        Raises:
            FailedPrecondition: a partition has other replicas than one on this node.
        """
        # A sink that retries while nothing can be written is active: its stages must not expire.
        self._node.publisher.touch(sink_id)
        self._check_writable()
        await self._finder.check_known([each.partition for each in batches])
        topics = self._node.metadata.topics
        pieces = []
        for partition, data, records in batches:
            self._check_alone(partition)
            topic, number = partition
            pieces.append(PieceBatches(topic, topics[topic].topic_id, number, data, records))
        return await self._node.publisher.stage(StageName(sink_id, stage_id), piece, pieces, seal)

    def _check_alone(self, partition: TopicPartition) -> None:
        if self._node.is_alone:
            return
        topic, number = partition
        replicas = self._node.metadata.topics[topic].replicas[number]
        if replicas != (self._node.node_id,):
            nodes = f"node{'s' * (len(replicas) > 1)} {', '.join(map(str, replicas))}"
            raise FailedPrecondition(
                f"staged writes to partition {number} of topic {topic} are not possible on node {self._node.node_id}: "
                f"its replicas are on {nodes}, and a stage is kept by one node only; append the records instead"
            )

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool,
        replaces: str,
    ) -> Published:
        """As `StagedWrites.publish`."""
        self._node.publisher.touch(sink_id)
        self._check_writable()
        return await self._node.publisher.publish(
            sink_id, epoch, query_id, stage_ids, reset=reset, replaces=replaces
        )
