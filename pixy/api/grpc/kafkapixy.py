"""Service `KafkaPixy` of kafkapixy.proto: translates between requests and calls of a proxy.

Produce, ConsumeNAck and Ack are answered by callback, without a task. An offer is the receipt of
its answer: it is delivered when the answer was handed to the transport, and otherwise offered to
another caller.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pixy.aio.steps import in_steps
from pixy.api.grpc.answers import consumed_message, produced_messages
from pixy.api.grpc.large_answers import a_few_at_a_time
from pixy.api.grpc.maxima import LARGE_FIELDS, REPEATED_MAX
from pixy.api.grpc.refusals import proxy_of, translate
from pixy.api.grpc.requests import (
    ConsumeOfCluster,
    ConsumeRequestParser,
    ProduceRequest,
    ProduceRequestParser,
)
from pixy.backend import OffsetCommit, TopicDescription
from pixy.consume import Offer
from pixy.errors import PixyError
from pixy.large_fields import serialize_with
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proxy import PartitionOffsets, Proxy
from pixy.rpc import (
    AnswerParts,
    Cancellable,
    Handler,
    JoinedMessage,
    Service,
    UnaryCall,
    answer_all,
    join_in_steps,
)


class KafkaPixyService:
    """Handlers of `KafkaPixy`.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
    """

    def __init__(self, proxies: Mapping[str, Proxy]) -> None:
        self._proxies = proxies

    def service(self) -> Service:
        """The service with its handlers."""
        handlers: dict[str, Handler] = {
            "Produce": self.produce,
            "ConsumeNAck": self.consume_n_ack,
            "Ack": self.ack,
            "GetOffsets": a_few_at_a_time(self.get_offsets),
            "SetOffsets": a_few_at_a_time(self.set_offsets),
            "ListTopics": a_few_at_a_time(self.list_topics),
            "ListConsumers": a_few_at_a_time(self.list_consumers),
            "GetTopicMetadata": a_few_at_a_time(self.get_topic_metadata),
        }
        parsers = {"Produce": ProduceRequestParser().parse, "ConsumeNAck": ConsumeRequestParser().parse}
        descriptor = pb.DESCRIPTOR.services_by_name["KafkaPixy"]
        return Service(
            descriptor, handlers, translate, parsers, REPEATED_MAX["KafkaPixy"], LARGE_FIELDS["KafkaPixy"]
        )

    def produce(self, request: ProduceRequest, call: UnaryCall) -> Cancellable | None:
        """# kafkapixy.proto: Produce"""
        cluster, topic, key, value, headers, sync = request
        proxy = self._proxies.get(cluster) or proxy_of(self._proxies, cluster)
        return proxy.produce(topic, key, value, headers, _produced, call, sync)

    def consume_n_ack(self, request: ConsumeOfCluster, call: UnaryCall) -> Cancellable | None:
        """# kafkapixy.proto: ConsumeNAck"""
        cluster, consumed = request
        proxy = self._proxies.get(cluster) or proxy_of(self._proxies, cluster)
        deadline = None if call.timeout_s is None else call.deadline
        return proxy.consume(consumed, partial(_consumed, call), deadline, call)

    def ack(self, request: pb.AckRq, call: UnaryCall) -> None:
        """# kafkapixy.proto: Ack"""
        proxy = proxy_of(self._proxies, request.cluster)
        done = partial(_acked, call)
        proxy.ack(request.group, request.topic, request.partition, request.offset, done, call)

    async def get_offsets(self, request: pb.GetOffsetsRq, call: UnaryCall) -> JoinedMessage:
        """# kafkapixy.proto: GetOffsets"""
        offsets = await proxy_of(self._proxies, request.cluster).get_offsets(request.group, request.topic)
        return await join_in_steps(call, (pb.GetOffsetsRs(offsets=[_partition_offset(of)]) for of in offsets))

    async def set_offsets(self, request: pb.SetOffsetsRq, call: UnaryCall) -> pb.SetOffsetsRs:
        """# kafkapixy.proto: SetOffsets"""
        offsets = [
            (of.partition, OffsetCommit(of.offset, of.metadata)) async for of in in_steps(request.offsets)
        ]
        await proxy_of(self._proxies, request.cluster).set_offsets(request.group, request.topic, offsets)
        return pb.SetOffsetsRs()

    async def list_topics(self, request: pb.ListTopicRq, call: UnaryCall) -> JoinedMessage:
        """# kafkapixy.proto: ListTopics"""
        topics = await proxy_of(self._proxies, request.cluster).list_topics()
        answer = AnswerParts(call)
        async for topic in in_steps(topics):
            answer.add(_listed(topic.name, await _topic_metadata(call, topic, request.with_partitions)))
        return answer.message

    async def list_consumers(self, request: pb.ListConsumersRq, call: UnaryCall) -> JoinedMessage:
        """# kafkapixy.proto: ListConsumers"""
        proxy = proxy_of(self._proxies, request.cluster)
        await proxy.describe_topic(request.topic)  # NOT_FOUND if there is none
        groups = await proxy.list_consumers(request.topic, request.group)
        parts = (
            pb.ListConsumersRs(groups={group: _consumers(consumers)}) for group, consumers in groups.items()
        )
        return await join_in_steps(call, parts)

    async def get_topic_metadata(self, request: pb.GetTopicMetadataRq, call: UnaryCall) -> JoinedMessage:
        """# kafkapixy.proto: GetTopicMetadata"""
        topic = await proxy_of(self._proxies, request.cluster).describe_topic(request.topic)
        return await _topic_metadata(call, topic, request.with_partitions)


def _produced(calls: Sequence[UnaryCall], partition: int, offset: int, error: PixyError | None) -> None:
    if error is not None:
        for call in calls:
            call.fail(error)
        return
    try:
        answer_all(calls, produced_messages(partition, offset, len(calls)))
    except Exception as bug:
        # The producer has other calls to answer. Calls that were answered are not affected.
        for call in calls:
            call.fail(bug)


def _consumed(call: UnaryCall, offer: Offer | None, error: PixyError | None) -> None:
    if offer is not None:
        try:
            message = consumed_message(offer)
        except Exception as bug:
            call.fail(bug, offer)
            return
        call.answer_packed(message, offer)
    else:
        assert error is not None
        call.fail(error)


def _acked(call: UnaryCall, error: PixyError | None) -> None:
    if error is None:
        call.answer(pb.AckRs())
    else:
        call.fail(error)


def _consumers(consumers: Mapping[str, Sequence[int]]) -> pb.ConsumerGroups:
    return pb.ConsumerGroups(
        consumers={
            client_id: pb.ConsumerPartitions(partitions=partitions)
            for client_id, partitions in consumers.items()
        }
    )


def _partition_offset(of: PartitionOffsets) -> pb.PartitionOffset:
    return pb.PartitionOffset(
        partition=of.partition,
        begin=of.begin,
        end=of.end,
        count=of.end - of.begin,
        offset=of.offset,
        lag=of.lag,
        metadata=of.metadata,
        sparse_acks=of.sparse_acks,
    )


async def _topic_metadata(call: UnaryCall, topic: TopicDescription, with_partitions: bool) -> JoinedMessage:
    """A `GetTopicMetadataRs`."""
    return await join_in_steps(call, _metadata_parts(topic, with_partitions))


def _metadata_parts(topic: TopicDescription, with_partitions: bool) -> Iterator[pb.GetTopicMetadataRs]:
    yield pb.GetTopicMetadataRs(version=topic.metadata_version, config=topic.config)
    for partition in topic.partitions if with_partitions else ():
        described = pb.PartitionMetadata(
            partition=partition.partition,
            leader=partition.leader,
            replicas=partition.replicas,
            isr=partition.isr,
        )
        yield pb.GetTopicMetadataRs(partitions=[described])


def _listed(topic: str, metadata: JoinedMessage) -> bytes:
    """The encoding of a `ListTopicRs` with one topic."""
    entry = serialize_with(pb.ListTopicRs.TopicsEntry(key=topic), "value", [metadata.SerializeToString()])
    return b"".join(serialize_with(pb.ListTopicRs(), "topics", entry))
