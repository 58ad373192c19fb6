"""The service `pixy.topics.v1.Topics` of pixy_topics.proto: translates requests to calls of a proxy and results to answers.

The one thing that it decides is how options may be written: Kafka's dotted names become pixy's here, so that nothing behind the
door knows two names for one option. What options there are and which values they take is the backend's business.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pixy.api.grpc.refusals import proxy_of, translate
from pixy.backend import OffsetRange, TopicDescription
from pixy.errors import InvalidArgument
from pixy.proto import pixy_topics_pb2 as pb
from pixy.proxy import Proxy
from pixy.rpc import Handler, Service, UnaryCall

__all__ = ["TopicsService"]

V = TypeVar("V", str, str | None)


class TopicsService:
    """Serves `Topics`.

    Args:
        proxies: by the name of the cluster; the one named "" is the default.
    """

    def __init__(self, proxies: Mapping[str, Proxy]) -> None:
        self._proxies = proxies

    def service(self) -> Service:
        """What serves this."""
        handlers: dict[str, Handler] = {
            "CreateTopic": self.create_topic,
            "AlterTopic": self.alter_topic,
            "DeleteTopic": self.delete_topic,
            "DescribeTopic": self.describe_topic,
        }
        return Service(pb.DESCRIPTOR.services_by_name["Topics"], handlers, translate)

    async def create_topic(self, request: pb.CreateTopicRequest, call: UnaryCall) -> pb.TopicDescription:
        """# pixy_topics.proto: CreateTopic"""
        proxy = proxy_of(self._proxies, request.cluster)
        config = _options(request.config.items())
        return _description(await proxy.create_topic(request.topic, request.partitions or None, config))

    async def alter_topic(self, request: pb.AlterTopicRequest, call: UnaryCall) -> pb.TopicDescription:
        """# pixy_topics.proto: AlterTopic"""
        proxy = proxy_of(self._proxies, request.cluster)
        changes: list[tuple[str, str | None]] = [
            *request.set.items(),
            *((name, None) for name in request.unset),
        ]
        return _description(
            await proxy.alter_topic(request.topic, request.partitions or None, _options(changes))
        )

    async def delete_topic(self, request: pb.DeleteTopicRequest, call: UnaryCall) -> pb.DeleteTopicResponse:
        """# pixy_topics.proto: DeleteTopic"""
        await proxy_of(self._proxies, request.cluster).delete_topic(request.topic, force=request.force)
        return pb.DeleteTopicResponse()

    async def describe_topic(self, request: pb.DescribeTopicRequest, call: UnaryCall) -> pb.TopicDescription:
        """# pixy_topics.proto: DescribeTopic"""
        proxy = proxy_of(self._proxies, request.cluster)
        topic = await proxy.describe_topic(request.topic)
        return _description(topic, await proxy.offset_ranges(request.topic))


def _options(named: Iterable[tuple[str, V]]) -> dict[str, V]:
    """Options by pixy's names.

    Raises:
        InvalidArgument: one is named twice, perhaps once in Kafka's way.
    """
    options: dict[str, V] = {}
    for written, value in named:
        name = written.replace(".", "_")
        if name in options:
            raise InvalidArgument(f"option {name} is named more than once")
        options[name] = value
    return options


def _description(
    topic: TopicDescription, ranges: Mapping[int, OffsetRange] | None = None
) -> pb.TopicDescription:
    """A topic as it is answered. A partition that came or went while its range was asked for has none."""
    description = pb.TopicDescription(
        topic=topic.name, topic_id=topic.topic_id, version=topic.version, config=topic.config
    )
    for each in topic.partitions:
        partition = description.partitions.add(
            partition=each.partition, leader=each.leader, replicas=each.replicas, isr=each.isr
        )
        if ranges is not None and each.partition in ranges:
            begin, end = ranges[each.partition]
            partition.offsets.CopyFrom(pb.OffsetRange(begin=begin, end=end))
    return description
