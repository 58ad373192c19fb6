"""Service `Topics` of pixy_topics.proto: translates between requests and calls of a proxy.

Kafka's dotted names of options become pixy's here, so that no layer below knows two names of one
option. The backend decides which options exist and which values they take.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import structlog

from pixy.aio.steps import in_steps
from pixy.api.grpc.large_answers import a_few_at_a_time
from pixy.api.grpc.maxima import REPEATED_MAX
from pixy.api.grpc.refusals import proxy_of, translate
from pixy.backend import OffsetRange, TopicDescription
from pixy.errors import InvalidArgument
from pixy.proto import pixy_topics_pb2 as pb
from pixy.proxy import Proxy
from pixy.rpc import Handler, JoinedMessage, Service, UnaryCall, join_in_steps

log = structlog.get_logger(__name__)

V = TypeVar("V", str, str | None)


class TopicsService:
    """Handlers of `Topics`.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
    """

    def __init__(self, proxies: Mapping[str, Proxy]) -> None:
        self._proxies = proxies

    def service(self) -> Service:
        """The service with its handlers."""
        handlers: dict[str, Handler] = {
            "CreateTopic": a_few_at_a_time(self.create_topic),
            "AlterTopic": a_few_at_a_time(self.alter_topic),
            "DeleteTopic": a_few_at_a_time(self.delete_topic),
            "DeleteRecords": a_few_at_a_time(self.delete_records),
            "DescribeTopic": a_few_at_a_time(self.describe_topic),
            "ListGroups": a_few_at_a_time(self.list_groups),
            "DeleteGroup": a_few_at_a_time(self.delete_group),
        }
        return Service(
            pb.DESCRIPTOR.services_by_name["Topics"], handlers, translate, maxima=REPEATED_MAX["Topics"]
        )

    async def create_topic(self, request: pb.CreateTopicRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_topics.proto: CreateTopic"""
        proxy = proxy_of(self._proxies, request.cluster)
        config = _options(request.config.items())
        topic = await proxy.create_topic(request.topic, request.partitions or None, config)
        log.info("a topic was made", topic=topic.name, partitions=len(topic.partitions), asked_by=call.peer)
        return await _description(call, topic)

    async def alter_topic(self, request: pb.AlterTopicRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_topics.proto: AlterTopic"""
        proxy = proxy_of(self._proxies, request.cluster)
        changes: list[tuple[str, str | None]] = [
            *request.set.items(),
            *((name, None) for name in request.unset),
        ]
        options = _options(changes)
        topic = await proxy.alter_topic(request.topic, request.partitions or None, options)
        log.info(
            "a topic was changed",
            topic=topic.name,
            partitions=len(topic.partitions),
            options=", ".join(options),
            asked_by=call.peer,
        )
        return await _description(call, topic)

    async def delete_topic(self, request: pb.DeleteTopicRequest, call: UnaryCall) -> pb.DeleteTopicResponse:
        """# pixy_topics.proto: DeleteTopic"""
        await proxy_of(self._proxies, request.cluster).delete_topic(request.topic, force=request.force)
        log.info("a topic was deleted", topic=request.topic, asked_by=call.peer)
        return pb.DeleteTopicResponse()

    async def delete_records(self, request: pb.DeleteRecordsRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_topics.proto: DeleteRecords"""
        offsets = [(of.partition, of.before_offset) async for of in in_steps(request.partitions)]
        begins = await proxy_of(self._proxies, request.cluster).delete_records(request.topic, offsets)
        log.info("records were removed", topic=request.topic, partitions=len(offsets), asked_by=call.peer)
        parts = (
            pb.DeleteRecordsResponse(partitions=[pb.RemainingRecords(partition=number, begin=begins[number])])
            for number, _ in offsets
        )
        return await join_in_steps(call, parts)

    async def describe_topic(self, request: pb.DescribeTopicRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_topics.proto: DescribeTopic"""
        proxy = proxy_of(self._proxies, request.cluster)
        topic = await proxy.describe_topic(request.topic)
        return await _description(call, topic, await proxy.known_ranges(request.topic))

    async def list_groups(self, request: pb.ListGroupsRequest, call: UnaryCall) -> JoinedMessage:
        """# pixy_topics.proto: ListGroups"""
        groups = await proxy_of(self._proxies, request.cluster).list_groups()
        return await join_in_steps(call, (pb.ListGroupsResponse(groups=[group]) for group in groups))

    async def delete_group(self, request: pb.DeleteGroupRequest, call: UnaryCall) -> pb.DeleteGroupResponse:
        """# pixy_topics.proto: DeleteGroup"""
        await proxy_of(self._proxies, request.cluster).delete_group(request.group, request.topic)
        log.info(
            "offsets of a consumer group were deleted",
            group=request.group,
            topic=request.topic,
            asked_by=call.peer,
        )
        return pb.DeleteGroupResponse()


def _options(named: Iterable[tuple[str, V]]) -> dict[str, V]:
    """Options by pixy's names.

    Raises:
        InvalidArgument: an option is named twice, possibly once by Kafka's name.
    """
    options: dict[str, V] = {}
    for written, value in named:
        name = written.replace(".", "_")
        if name in options:
            raise InvalidArgument(f"option {name} is named more than once")
        options[name] = value
    return options


async def _description(
    call: UnaryCall, topic: TopicDescription, ranges: Mapping[int, OffsetRange] | None = None
) -> JoinedMessage:
    """A topic as a `TopicDescription`.

    A partition that came or went during the request, or has no leader, has no offset range.
    """
    return await join_in_steps(call, _parts(topic, ranges or {}))


def _parts(topic: TopicDescription, ranges: Mapping[int, OffsetRange]) -> Iterator[pb.TopicDescription]:
    yield pb.TopicDescription(
        topic=topic.name, topic_id=topic.topic_id, version=topic.version, config=topic.config
    )
    for each in topic.partitions:
        partition = pb.PartitionDescription(
            partition=each.partition,
            leader=each.leader,
            replicas=each.replicas,
            isr=each.isr,
            moves_to=each.moves_to,
        )
        if each.partition in ranges:
            begin, end = ranges[each.partition]
            partition.offsets.CopyFrom(pb.OffsetRange(begin=begin, end=end))
        yield pb.TopicDescription(partitions=[partition])
