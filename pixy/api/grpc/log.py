"""Service `Log` of pixy_log.proto: translates between requests and bulk access to a cluster.

It owns the path of fetched batches to the client: a range is read further only when the transport
has taken what was read before, and the connection accepts more output. No record is decoded.
"""

from collections.abc import Mapping
from itertools import chain

from pixy.aio.steps import in_steps
from pixy.api.grpc.consume_batch import BatchConsuming
from pixy.api.grpc.large_answers import a_few_at_a_time
from pixy.api.grpc.maxima import LARGE_FIELDS, REPEATED_MAX
from pixy.api.grpc.refusals import proxy_of, translate
from pixy.api.grpc.staging import StagingMethods, partition_batches, topic_versions
from pixy.backend import TopicDescription, TopicPartition
from pixy.errors import InvalidArgument
from pixy.large_fields import Parted, Serialized, parse_with, serialize_with
from pixy.proto import pixy_log_pb2 as pb
from pixy.proxy import (
    Appended,
    Fetched,
    OffsetPosition,
    OffsetQuery,
    Proxy,
    Range,
    RangeReader,
    RangeState,
)
from pixy.rpc import (
    Handler,
    JoinedMessage,
    Service,
    StreamCall,
    UnaryCall,
    join_in_steps,
)

_STATES = {
    RangeState.MORE: pb.MORE,
    RangeState.END_OF_RANGE: pb.END_OF_RANGE,
    RangeState.END_OF_LOG: pb.END_OF_LOG,
    RangeState.OFFSET_OUT_OF_RANGE: pb.OFFSET_OUT_OF_RANGE,
    RangeState.UNKNOWN_PARTITION: pb.UNKNOWN_PARTITION,
}


class LogService:
    """Handlers of `Log`.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
    """

    def __init__(self, proxies: Mapping[str, Proxy]) -> None:
        self._proxies = proxies
        self._consuming = BatchConsuming(proxies)

    def service(self) -> Service:
        """The service with its handlers."""
        handlers: dict[str, Handler] = {
            "DescribeTopics": a_few_at_a_time(self.describe_topics),
            "ListOffsets": a_few_at_a_time(self.list_offsets),
            "Fetch": self.fetch,
            "Append": self.append,
            "ConsumeBatch": self._consuming.consume_batch,
            **StagingMethods(self._proxies).handlers(),
        }
        parsers = {
            "Append": parse_with(pb.AppendRequest, "partitions", "batches"),
            "Stage": parse_with(pb.StageRequest, "partitions", "batches"),
        }
        descriptor = pb.DESCRIPTOR.services_by_name["Log"]
        return Service(
            descriptor,
            handlers,
            translate,
            parsers,
            REPEATED_MAX["Log"],
            LARGE_FIELDS["Log"],
            {"ConsumeBatch"},
        )

    async def describe_topics(self, request: pb.DescribeTopicsRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_log.proto: DescribeTopics"""
        log = proxy_of(self._proxies, request.cluster).log
        topics = await log.describe_topics(
            request.topics, create_missing=request.create_missing, client=call.peer
        )
        options = pb.DescribeTopicsResponse(
            partitioner=log.partitioner, max_message_bytes=log.message_bytes_max
        )
        described = (pb.DescribeTopicsResponse(topics=[_topic(topic)]) for topic in topics)
        return await join_in_steps(call, chain((options,), described))

    async def list_offsets(self, request: pb.ListOffsetsRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_log.proto: ListOffsets"""
        log = proxy_of(self._proxies, request.cluster).log
        queries = [_query(each) async for each in in_steps(request.queries)]
        offsets = await log.list_offsets(queries, call.peer)
        return await join_in_steps(
            call, (pb.ListOffsetsResponse(answers=[_answer(offset)]) for offset in offsets)
        )

    async def fetch(self, request: pb.FetchRequest, call: StreamCall) -> None:
        """# pixy_log.proto: Fetch"""
        log = proxy_of(self._proxies, request.cluster).log
        max_bytes = log.fetch_bytes(request.max_bytes)
        max_wait = request.max_wait_ms / 1000
        with log.fetches.holding(len(request.ranges), call.peer):
            ranges = [_range(each) async for each in in_steps(request.ranges)]
            del request
            readers = await log.readers(ranges, max_bytes=max_bytes, max_wait=max_wait)
            for number, reader in enumerate(readers):
                while await _send_some(call, number, reader, log.held_bytes(max_bytes)):
                    pass

    async def append(self, parted: Parted, call: UnaryCall) -> JoinedMessage:
        """# pixy_log.proto: Append"""
        request: pb.AppendRequest = parted.message
        log = proxy_of(self._proxies, request.cluster).log
        partitions = await partition_batches(request.partitions, parted.fields)
        versions = await topic_versions(request.versions)
        results = await log.append(partitions, versions, call.peer)
        return await join_in_steps(call, (pb.AppendResponse(results=[_result(each)]) for each in results))


async def _send_some(call: StreamCall, number: int, reader: RangeReader, held_bytes: int) -> bool:
    """Send the next batches of a range; returns True if there are more."""
    await reader.wait()
    async with call.reserve_output(held_bytes):
        fetched = await reader.read()
        more = fetched.state is RangeState.MORE
        message = _response(number, fetched) if fetched.batches or not more else []
        # Small batches are copied into the message: both would stay while the client does not read.
        del fetched
        if message:
            await call.send_serialized(message)
        return more


def _response(number: int, fetched: Fetched) -> Serialized:
    response = pb.FetchResponse(
        range=number,
        next_offset=fetched.next_offset,
        log_begin_offset=fetched.log_begin_offset,
        log_end_offset=fetched.log_end_offset,
        state=_STATES[fetched.state],
    )
    return serialize_with(response, "batches", fetched.batches)


def _range(each: pb.FetchRange) -> Range:
    partition = TopicPartition(each.topic, each.partition)
    return Range(partition, each.from_offset, each.to_offset, each.topic_id)


def _query(each: pb.OffsetQuery) -> OffsetQuery:
    """The position of a query.

    Raises:
        InvalidArgument: the query has none.
    """
    partition = TopicPartition(each.topic, each.partition)
    match each.WhichOneof("at"):
        case "earliest":
            return OffsetQuery(partition, OffsetPosition.EARLIEST)
        case "latest":
            return OffsetQuery(partition, OffsetPosition.LATEST)
        case "timestamp_ms":
            return OffsetQuery(partition, each.timestamp_ms)
        case _:
            raise InvalidArgument(
                f"the query for partition {each.partition} of topic {each.topic} has no position, expected one of earliest, "
                "latest and timestamp_ms"
            )


def _topic(topic: TopicDescription) -> pb.Topic:
    return pb.Topic(
        topic=topic.name, topic_id=topic.topic_id, version=topic.version, partitions=len(topic.partitions)
    )


def _answer(offset: int | None) -> pb.OffsetAnswer:
    return pb.OffsetAnswer(offset=-1 if offset is None else offset, unknown_partition=offset is None)


def _result(appended: Appended) -> pb.AppendResult:
    base_offset, error = appended
    if error is None:
        return pb.AppendResult(base_offset=base_offset)
    return pb.AppendResult(base_offset=-1, code=error.grpc_status, message=str(error))
