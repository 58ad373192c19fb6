"""Metadata and DescribeCluster: brokers, topics, and the leaders of partitions."""

from collections.abc import Sequence
from typing import NamedTuple

from pixy.aio.steps import in_steps
from pixy.api.kafka.brokers import NO_LEADER, Brokers, host_and_port
from pixy.api.kafka.codes import (
    INVALID_TOPIC,
    LEADER_NOT_AVAILABLE,
    NONE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    admin_code,
)
from pixy.api.kafka.topic_ids import TopicIds
from pixy.backend import TopicDescription
from pixy.client_address import client_address
from pixy.errors import NotFound, PixyError, TopicMissing, Unavailable, UnknownTopic
from pixy.kafka_messages.generated.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from pixy.kafka_messages.generated.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pixy.proxy import Proxy
from pixy.wire import WireExchange

NO_ID = bytes(16)
_IDS_FROM = 12
_BROKERS, _CONTROLLERS = 1, 2
_UNSUPPORTED_ENDPOINT_TYPE = 115


class _Asked(NamedTuple):
    """A topic of a request: its name, or its id if that is unknown, or neither."""

    name: str
    topic_id: bytes = NO_ID


class MetadataApi:
    """Handlers of Metadata and DescribeCluster.

    Args:
        proxy: of the cluster.
        brokers: of the cluster.
        topic_ids: of the cluster.
    """

    def __init__(self, proxy: Proxy, brokers: Brokers, topic_ids: TopicIds) -> None:
        self._proxy = proxy
        self._brokers = brokers
        self._topic_ids = topic_ids

    async def metadata(self, exchange: WireExchange, request: MetadataRequest) -> MetadataResponse:
        """Describe topics. Missing ones are created if that is configured and asked for."""
        brokers = self._brokers
        await brokers.find()
        topics = request.topics
        if topics is None or (not topics and not exchange.version):
            try:
                found = await self._proxy.list_topics()
                answers = [self._described(topic) async for topic in in_steps(found)]
            except PixyError:
                answers = []
        else:
            # KIP-516: requests before version 12 have ids that mean nothing.
            has_ids = exchange.version >= _IDS_FROM
            asked = [
                await self._asked(each.name, each.topic_id if has_ids else NO_ID)
                async for each in in_steps(topics)
            ]
            peer = client_address(exchange.peer)
            answers = await self._all(asked, peer, creates=request.allow_auto_topic_creation)
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(each.node_id, *host_and_port(each.address), each.rack or None)
                for each in brokers.all()
            ],
            cluster_id=brokers.cluster_id,
            controller_id=brokers.own_id,
            topics=answers,
        )

    async def describe_cluster(
        self, exchange: WireExchange, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        """Describe the brokers."""
        brokers = self._brokers
        await brokers.find()
        if request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                0, _UNSUPPORTED_ENDPOINT_TYPE, "controllers have no addresses of their own", _CONTROLLERS
            )
        return DescribeClusterResponse(
            cluster_id=brokers.cluster_id,
            controller_id=brokers.own_id,
            brokers=[
                DescribeClusterBroker(each.node_id, *host_and_port(each.address), each.rack or None)
                for each in brokers.all()
            ],
        )

    async def _asked(self, name: str | None, topic_id: bytes) -> _Asked:
        if not name and topic_id != NO_ID:
            name = await self._topic_ids.find(topic_id)
        return _Asked(name or "", topic_id)

    async def _all(
        self, asked: Sequence[_Asked], client: str, *, creates: bool
    ) -> list[MetadataResponseTopic]:
        """The answers for all topics of a request, in its order."""
        names = {each.name for each in asked if each.name}
        try:
            known = {topic.name: topic for topic in await self._proxy.log.list_topics([*names])}
        except PixyError as error:
            return [_refused(each, admin_code(error)) for each in asked]
        answers = []
        async for each in in_steps(asked):
            topic = known.get(each.name)
            if topic is not None:
                answers.append(self._described(topic))
            elif not each.name:
                code = INVALID_TOPIC if each.topic_id == NO_ID else UNKNOWN_TOPIC_ID
                answers.append(_refused(each, code))
            else:
                answers.append(await self._made(each, client, creates=creates))
        return answers

    async def _made(self, asked: _Asked, client: str, *, creates: bool) -> MetadataResponseTopic:
        """The answer for a topic that is not there, unless it is made now."""
        try:
            if not creates:
                raise UnknownTopic(f"unknown topic {asked.name}")
            (topic,) = await self._proxy.log.describe_topics([asked.name], create_missing=True, client=client)
        except (TopicMissing, NotFound, ValueError):
            return _refused(asked, UNKNOWN_TOPIC_OR_PARTITION)
        except Unavailable:
            return _refused(asked, LEADER_NOT_AVAILABLE)
        except PixyError as error:
            return _refused(asked, admin_code(error))
        return self._described(topic)

    def _described(self, topic: TopicDescription) -> MetadataResponseTopic:
        partitions = []
        for each in topic.partitions:
            leader, replicas, isr, offline = self._brokers.leadership(each)
            code = LEADER_NOT_AVAILABLE if leader == NO_LEADER else NONE
            partitions.append(
                MetadataResponsePartition(code, each.partition, leader, -1, replicas, isr, offline)
            )
        return MetadataResponseTopic(NONE, topic.name, topic.topic_id or NO_ID, False, partitions)


def _refused(asked: _Asked, code: int) -> MetadataResponseTopic:
    name = None if code == UNKNOWN_TOPIC_ID else asked.name
    return MetadataResponseTopic(code, name, asked.topic_id, False, [])
