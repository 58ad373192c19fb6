"""Methods `Stage`, `Publish` and `Discard` of the service `Log`: translation only."""

from collections.abc import Iterable, Mapping

from pixy.aio.steps import in_steps
from pixy.api.grpc.refusals import proxy_of
from pixy.backend import StageSeal, TopicPartition
from pixy.large_fields import Parted
from pixy.proto import pixy_log_pb2 as pb
from pixy.proxy import PartitionBatches, Proxy, TopicVersion
from pixy.rpc import Handler, UnaryCall


async def partition_batches(
    partitions: Iterable[pb.PartitionBatches], batches: Iterable[bytes | memoryview]
) -> list[PartitionBatches]:
    """Join the partitions of a request with their batches, which were parsed apart, in order."""
    return [
        PartitionBatches(TopicPartition(each.topic, each.partition), of)
        async for each, of in in_steps(zip(partitions, batches, strict=True))
    ]


async def topic_versions(versions: Iterable[pb.TopicVersion]) -> list[TopicVersion]:
    """The topics that a request was partitioned for."""
    return [TopicVersion(each.topic, each.version, each.topic_id) async for each in in_steps(versions)]


class StagingMethods:
    """Handlers of staged writes.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
    """

    def __init__(self, proxies: Mapping[str, Proxy]) -> None:
        self._proxies = proxies

    def handlers(self) -> dict[str, Handler]:
        """The handlers by method name."""
        return {"Stage": self.stage, "Publish": self.publish, "Discard": self.discard}

    async def stage(self, parted: Parted, call: UnaryCall) -> pb.StageResponse:
        """# pixy_log.proto: Stage"""
        request: pb.StageRequest = parted.message
        staging = proxy_of(self._proxies, request.cluster).staging
        partitions = await partition_batches(request.partitions, parted.fields)
        versions = await topic_versions(request.versions)
        seal = StageSeal(request.seal.pieces, request.seal.crc) if request.HasField("seal") else None
        size = await staging.stage(
            request.sink_id, request.stage_id, request.piece, partitions, versions, seal, call.peer
        )
        return pb.StageResponse(staged_bytes=size)

    async def publish(self, request: pb.PublishRequest, call: UnaryCall) -> pb.PublishResponse:
        """# pixy_log.proto: Publish"""
        staging = proxy_of(self._proxies, request.cluster).staging
        stage_ids = list(request.stage_ids)
        outcome = await staging.publish(
            request.sink_id,
            request.epoch,
            request.query_id,
            stage_ids,
            reset=request.reset_sink,
            replaces=request.replaces_query_id,
            peer=call.peer,
        )
        return pb.PublishResponse(published=outcome.published, last_epoch=outcome.last_epoch)

    async def discard(self, request: pb.DiscardRequest, call: UnaryCall) -> pb.DiscardResponse:
        """# pixy_log.proto: Discard"""
        staging = proxy_of(self._proxies, request.cluster).staging
        await staging.discard(request.sink_id, list(request.stage_ids))
        return pb.DiscardResponse()
