"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from pixy.aio.steps import in_steps
from pixy.api.kafka.brokers import Brokers
from pixy.api.kafka.codes import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    NONE,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    admin_code,
    option_code,
    text_of,
)
from pixy.api.kafka.topic_ids import TopicIds
from pixy.api.kafka.topic_options import own_options, topic_options
from pixy.backend import TopicDescription
from pixy.config import ProxyConfig
from pixy.errors import PixyError
from pixy.kafka_messages.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from pixy.kafka_messages.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pixy.kafka_messages.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from pixy.kafka_messages.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from pixy.proxy import Proxy
from pixy.records import check_topic_name
from pixy.wire import WireExchange

log = structlog.get_logger(__name__)

_DEFAULT = -1
_BY_ID_FROM = 6
_NO_ID = bytes(16)


class TopicsApi:
    """Handlers of what changes topics.

    Args:
        proxy: of the cluster.
        brokers: of the cluster.
        topic_ids: of the cluster.
        config: of the cluster.
    """

    def __init__(self, proxy: Proxy, brokers: Brokers, topic_ids: TopicIds, config: ProxyConfig) -> None:
        self._proxy = proxy
        self._brokers = brokers
        self._topic_ids = topic_ids
        self._config = config

    # --- creation ---------------------------------------------------------------------------------

    async def create_topics(
        self, exchange: WireExchange, request: CreateTopicsRequest
    ) -> CreateTopicsResponse:
        """Create topics, each on its own."""
        count = Counter(each.name for each in request.topics)
        results = []
        async for each in in_steps({each.name: each for each in request.topics}.values()):
            if count[each.name] > 1:
                results.append(_not_created(each, INVALID_REQUEST, "the topic is there more than once"))
            else:
                results.append(await self._created(each, exchange.peer, validate_only=request.validate_only))
        return CreateTopicsResponse(topics=results)

    async def _created(
        self, asked: CreatableTopic, peer: str, *, validate_only: bool
    ) -> CreatableTopicResult:
        if asked.assignments:
            return _not_created(asked, INVALID_REPLICA_ASSIGNMENT, "replicas are placed by the cluster")
        partitions, replication = asked.num_partitions, asked.replication_factor
        if partitions < 1 and partitions != _DEFAULT:
            return _not_created(
                asked, INVALID_PARTITIONS, f"{partitions} partitions, expected 1 or more, or -1"
            )
        if replication < 1 and replication != _DEFAULT:
            message = f"{replication} replicas, expected 1 or more, or -1"
            return _not_created(asked, INVALID_REPLICATION_FACTOR, message)
        try:
            options = own_options((each.name, each.value) for each in asked.configs)
            if replication > 1 or (replication == 1 and len(self._brokers.all()) > 1):
                # A node alone has one replica of each topic, until others join.
                options["replication"] = str(replication)
            if validate_only:
                return await self._would_be_created(asked, options)
            count = None if partitions == _DEFAULT else partitions
            topic = await self._proxy.create_topic(asked.name, count, options)
        except PixyError as error:
            code = option_code(error)
            if code == INVALID_CONFIG and "replica" in str(error):
                code = INVALID_REPLICATION_FACTOR
            return _not_created(asked, code, text_of(error))
        log.info("a topic was made", topic=topic.name, partitions=len(topic.partitions), asked_by=peer)
        return self._result(topic)

    async def _would_be_created(self, asked: CreatableTopic, options: dict[str, str]) -> CreatableTopicResult:
        check_topic_name(asked.name)
        if await self._proxy.log.list_topics([asked.name]):
            return _not_created(asked, TOPIC_ALREADY_EXISTS, f"topic {asked.name} exists already")
        count = self._config.default_partitions if asked.num_partitions == _DEFAULT else asked.num_partitions
        return CreatableTopicResult(
            asked.name,
            num_partitions=count,
            replication_factor=max(asked.replication_factor, 1),
            configs=self._shown(options),
        )

    def _result(self, topic: TopicDescription) -> CreatableTopicResult:
        replicas = len(topic.partitions[0].replicas) if topic.partitions else 1
        return CreatableTopicResult(
            topic.name,
            topic.topic_id or _NO_ID,
            num_partitions=len(topic.partitions),
            replication_factor=replicas,
            configs=self._shown(topic.config),
        )

    def _shown(self, own: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        return [
            CreatableTopicConfigs(each.name, each.value, each.is_read_only, each.source)
            for each in topic_options(own, self._config)
        ]

    async def create_partitions(
        self, exchange: WireExchange, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        """Add partitions to topics, each on its own."""
        results = []
        async for each in in_steps(request.topics):
            code, message = await self._grown(each, exchange.peer, validate_only=request.validate_only)
            results.append(CreatePartitionsTopicResult(each.name, code, message))
        return CreatePartitionsResponse(results=results)

    async def _grown(
        self, asked: CreatePartitionsTopic, peer: str, *, validate_only: bool
    ) -> tuple[int, str | None]:
        """Code and message for one topic."""
        if asked.assignments:
            return INVALID_REPLICA_ASSIGNMENT, "replicas are placed by the cluster"
        try:
            count = len((await self._proxy.describe_topic(asked.name)).partitions)
            if asked.count <= count:
                return (
                    INVALID_PARTITIONS,
                    f"topic {asked.name} has {count} partitions, {asked.count} are not more",
                )
            if not validate_only:
                await self._proxy.alter_topic(asked.name, asked.count, {})
                log.info("a topic was changed", topic=asked.name, partitions=asked.count, asked_by=peer)
        except PixyError as error:
            code = option_code(error)
            return (INVALID_PARTITIONS if code == INVALID_CONFIG else code), text_of(error)
        return NONE, None

    # --- deletion ---------------------------------------------------------------------------------

    async def delete_topics(
        self, exchange: WireExchange, request: DeleteTopicsRequest
    ) -> DeleteTopicsResponse:
        """Delete topics, each on its own."""
        asked: Sequence[DeleteTopicState] = request.topics
        if exchange.version < _BY_ID_FROM:
            asked = [DeleteTopicState(name) for name in request.topic_names]
        return DeleteTopicsResponse(
            responses=[await self._deleted(each, exchange.peer) async for each in in_steps(asked)]
        )

    async def _deleted(self, asked: DeleteTopicState, peer: str) -> DeletableTopicResult:
        name = asked.name
        if name is None:
            name = await self._topic_ids.find(asked.topic_id)
            if not name:
                return DeletableTopicResult(None, asked.topic_id, UNKNOWN_TOPIC_ID, "no topic has this id")
        try:
            await self._proxy.delete_topic(name)
        except PixyError as error:
            return DeletableTopicResult(name, asked.topic_id, admin_code(error), text_of(error))
        log.info("a topic was deleted", topic=name, asked_by=peer)
        return DeletableTopicResult(name, asked.topic_id)

    async def delete_records(
        self, exchange: WireExchange, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse:
        """Remove the first records of partitions, each on its own."""
        topics = []
        async for topic in in_steps(request.topics):
            parts = [await self._removed(topic.name, each) async for each in in_steps(topic.partitions)]
            topics.append(DeleteRecordsTopicResult(topic.name, parts))
        log.info("records were removed", topics=len(topics), asked_by=exchange.peer)
        return DeleteRecordsResponse(topics=topics)

    async def _removed(self, name: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        number = asked.partition_index
        try:
            begins = await self._proxy.delete_records(name, [(number, asked.offset)])
        except PixyError as error:
            return DeleteRecordsPartitionResult(number, -1, admin_code(error))
        return DeleteRecordsPartitionResult(number, begins[number], NONE)


def _not_created(asked: CreatableTopic, code: int, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(asked.name, _NO_ID, code, message, configs=None)
