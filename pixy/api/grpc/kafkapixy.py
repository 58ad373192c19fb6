"""The service `KafkaPixy` of kafkapixy.proto: translates requests to calls of a proxy and results to answers.

ConsumeNAck is a unary call on the wire, and served as a stream of exactly one answer. The two are the same bytes, but only the
second lets the server see when the answer is with the transport, which is when an offer counts as delivered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from pixy.api.grpc.call import answering, proxy_of, serialize
from pixy.backend import OffsetCommit, TopicDescription
from pixy.clock import Clock
from pixy.consume import Offer
from pixy.errors import PixyError, Unavailable
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proxy import Proxy

__all__ = ["KafkaPixyService"]

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


class KafkaPixyService:
    """Serves `KafkaPixy`.

    Args:
        proxies: by the name of the cluster; the one named "" is the default.
        clock: turns the time that a caller has left into a deadline.
        on_fault: called with an exception that is a bug.
    """

    def __init__(
        self, proxies: Mapping[str, Proxy], clock: Clock, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._proxies = proxies
        self._clock = clock
        self._on_fault = on_fault

    def handlers(self) -> "dict[str, Handler]":
        """A handler for each method of the service."""
        unary: dict[str, tuple[Callable[[Any, Context], Awaitable[Any]], Any]] = {
            "Produce": (self.produce, pb.ProdRq),
            "Ack": (self.ack, pb.AckRq),
            "GetOffsets": (self.get_offsets, pb.GetOffsetsRq),
            "SetOffsets": (self.set_offsets, pb.SetOffsetsRq),
            "ListTopics": (self.list_topics, pb.ListTopicRq),
            "ListConsumers": (self.list_consumers, pb.ListConsumersRq),
            "GetTopicMetadata": (self.get_topic_metadata, pb.GetTopicMetadataRq),
        }
        handlers: dict[str, Handler] = {
            name: grpc.unary_unary_rpc_method_handler(
                answering(method, self._on_fault), request.FromString, serialize
            )
            for name, (method, request) in unary.items()
        }
        handlers["ConsumeNAck"] = grpc.unary_stream_rpc_method_handler(
            answering(self.consume_n_ack, self._on_fault), pb.ConsNAckRq.FromString, serialize
        )
        return handlers

    async def produce(self, request: pb.ProdRq, context: "Context") -> pb.ProdRs:
        """# kafkapixy.proto: Produce"""
        proxy = proxy_of(self._proxies, request.cluster)
        answer: asyncio.Future[pb.ProdRs] = asyncio.get_running_loop().create_future()

        def done(partition: int, offset: int, error: PixyError | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(pb.ProdRs(partition=partition, offset=offset))
            else:
                answer.set_exception(error)

        waiting = proxy.produce(
            request.topic,
            None if request.key_undefined else request.key_value,
            request.message,
            [(header.key, header.value) for header in request.headers] if request.headers else (),
            done,
            sync=not request.async_mode,
        )
        try:
            return await answer
        except asyncio.CancelledError:
            if waiting is not None:
                waiting.cancel()
            raise

    async def consume_n_ack(self, request: pb.ConsNAckRq, context: "Context") -> None:
        """# kafkapixy.proto: ConsumeNAck"""
        proxy = proxy_of(self._proxies, request.cluster)
        taken: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()

        def done(offer: Offer | None, error: PixyError | None) -> None:
            if taken.done():
                if offer is not None:
                    offer.undelivered()
            elif offer is not None:
                taken.set_result(offer)
            else:
                assert error is not None
                taken.set_exception(error)

        ack = None
        if not request.no_ack and not request.auto_ack:
            ack = (request.ack_partition, request.ack_offset)
        remaining = context.time_remaining()
        waiting = proxy.consume(
            request.group,
            request.topic,
            done,
            auto_ack=request.auto_ack and not request.no_ack,
            ack=ack,
            ack_if_offered=ack == (0, 0),
            deadline=None if remaining is None else self._clock.monotonic() + remaining,
        )
        try:
            offer = await taken
        except asyncio.CancelledError:
            if waiting is not None:
                waiting.cancel()
            if taken.done() and not taken.cancelled() and taken.exception() is None:
                taken.result().undelivered()
            raise
        message = _message(offer)
        try:
            await context.write(message)
        except asyncio.CancelledError:
            offer.undelivered()
            raise
        except Exception as error:  # of whatever class grpc has for a call that is gone
            offer.undelivered()
            raise Unavailable("the answer could not be written") from error
        offer.delivered()

    async def ack(self, request: pb.AckRq, context: "Context") -> pb.AckRs:
        """# kafkapixy.proto: Ack"""
        proxy = proxy_of(self._proxies, request.cluster)
        acked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PixyError | None) -> None:
            if acked.done():
                return
            if error is None:
                acked.set_result(None)
            else:
                acked.set_exception(error)

        proxy.ack(request.group, request.topic, request.partition, request.offset, done)
        await acked
        return pb.AckRs()

    async def get_offsets(self, request: pb.GetOffsetsRq, context: "Context") -> pb.GetOffsetsRs:
        """# kafkapixy.proto: GetOffsets"""
        offsets = await proxy_of(self._proxies, request.cluster).get_offsets(request.group, request.topic)
        return pb.GetOffsetsRs(
            offsets=[
                pb.PartitionOffset(
                    partition=of.partition,
                    begin=of.begin,
                    end=of.end,
                    count=of.end - of.begin,
                    offset=of.offset,
                    lag=of.lag,
                    metadata=of.metadata,
                    sparse_acks=of.sparse_acks,
                )
                for of in offsets
            ]
        )

    async def set_offsets(self, request: pb.SetOffsetsRq, context: "Context") -> pb.SetOffsetsRs:
        """# kafkapixy.proto: SetOffsets"""
        offsets = [(of.partition, OffsetCommit(of.offset, of.metadata)) for of in request.offsets]
        await proxy_of(self._proxies, request.cluster).set_offsets(request.group, request.topic, offsets)
        return pb.SetOffsetsRs()

    async def list_topics(self, request: pb.ListTopicRq, context: "Context") -> pb.ListTopicRs:
        """# kafkapixy.proto: ListTopics"""
        topics = await proxy_of(self._proxies, request.cluster).list_topics()
        return pb.ListTopicRs(
            topics={topic.name: _topic_metadata(topic, request.with_partitions) for topic in topics}
        )

    async def list_consumers(self, request: pb.ListConsumersRq, context: "Context") -> pb.ListConsumersRs:
        """# kafkapixy.proto: ListConsumers"""
        groups = await proxy_of(self._proxies, request.cluster).list_consumers(request.topic, request.group)
        return pb.ListConsumersRs(
            groups={
                group: pb.ConsumerGroups(
                    consumers={
                        client_id: pb.ConsumerPartitions(partitions=partitions)
                        for client_id, partitions in consumers.items()
                    }
                )
                for group, consumers in groups.items()
            }
        )

    async def get_topic_metadata(
        self, request: pb.GetTopicMetadataRq, context: "Context"
    ) -> pb.GetTopicMetadataRs:
        """# kafkapixy.proto: GetTopicMetadata"""
        topic = await proxy_of(self._proxies, request.cluster).describe_topic(request.topic)
        return _topic_metadata(topic, request.with_partitions)


def _message(offer: Offer) -> pb.ConsRs:
    record = offer.record
    message = pb.ConsRs(partition=offer.partition, offset=record.offset, message=record.value or b"")
    if record.key is None:
        message.key_undefined = True
    else:
        message.key_value = record.key
    for name, value in record.headers:
        message.headers.add(key=name, value=value or b"")
    return message


def _topic_metadata(topic: TopicDescription, with_partitions: bool) -> pb.GetTopicMetadataRs:
    metadata = pb.GetTopicMetadataRs(version=topic.version, config=topic.config)
    if with_partitions:
        for partition in topic.partitions:
            metadata.partitions.add(
                partition=partition.partition,
                leader=partition.leader,
                replicas=partition.replicas,
                isr=partition.isr,
            )
    return metadata
