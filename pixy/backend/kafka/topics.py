"""Topics of a Kafka cluster: create, alter, delete, describe, list.

Options have Kafka's names with underscores for dots (`retention_ms` is Kafka's `retention.ms`).
Every topic option of Kafka can be set; Kafka itself validates names and values. A description has
only the options that were set for the topic.

Changes are sent to any broker, which forwards them to the controller. The controller answers at
once, and the change reaches the brokers one after the other; so each call returns when the next
broker asked has it. A change without a response is not sent again: it may have been made, and the
error says that the broker has not answered.

Kafka cannot change partitions and options of a topic in one step. The growth is validated first,
then the options are set, all or none, then the partitions are added. A broker that fails in between
leaves the options set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pixy.backend.kafka.client import KafkaClient, short_attempts
from pixy.backend.kafka.errors import (
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerFault,
    error_for_code,
)
from pixy.backend.protocol import TopicDescription
from pixy.errors import InvalidArgument, InvalidTopic, PixyError, Unavailable, UnknownTopic
from pixy.kafka_protocol.messages import (
    ALTER_OPTION_DELETE,
    ALTER_OPTION_SET,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    TOPIC_RESOURCE,
)
from pixy.records import check_topic_name

_PARTITIONS_MAX = 10_000
_TIMEOUT_MS = 10_000
_CHANGE_S = 15.0
"""Time limit for a broker that hangs; a live one reports itself that the controller takes more than
`_TIMEOUT_MS`.
"""
_READ_S = 3.0
_INTERNAL = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Topics in which Kafka keeps the offsets and transactions of all its clients. Brokers would delete
them, and take others of these names for them; no other request shows them either.
"""
_SET_FOR_THE_TOPIC = 1
_DEFAULT_REPLICAS = -1
_CONFIGS_AT_ONCE = 20
"""Topics per DescribeConfigs request.

A topic has some forty options: more would stall the event loop.
"""


class Topics:
    """The topics of one cluster."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client

    async def describe(self, name: str) -> TopicDescription:
        """As `Backend.describe_topic`."""
        attempts = short_attempts()
        while True:
            await self._refresh([name])
            for described in await self._with_configs([name]):
                return described
            missing = UnknownTopic(f"unknown topic {name}")
            if name not in self._client.metadata.topics:
                raise missing
            await attempts.again(missing)  # the broker that was asked for the options lags behind

    async def list_topics(self, names: Sequence[str] | None) -> Sequence[TopicDescription]:
        """As `Backend.list_topics`."""
        await self._refresh(names)
        known = self._client.metadata.topics
        return await self._with_configs(sorted(known if names is None else known.keys() & {*names}))

    async def create(self, name: str, partitions: int, config: Mapping[str, str]) -> TopicDescription:
        """As `Backend.create_topic`."""
        check_topic_name(name)
        if name in _INTERNAL:
            raise InvalidTopic(f"topic {name} is internal to Kafka, and made by its brokers alone")
        _check_count(name, partitions)
        configs: list[Any] = [(_kafka_name(option), value, {}) for option, value in config.items()]
        topics: list[Any] = [(name, partitions, _DEFAULT_REPLICAS, [], configs, {})]
        answer = await self._ask(CREATE_TOPICS(topics, _TIMEOUT_MS, False, {}))
        for _, topic_id, code, message, *_ in answer.topics:
            if code == TOPIC_ALREADY_EXISTS:
                await self._wait_partitions(name, 1)  # the caller finds it in the metadata then
            _check(code, f"cannot create topic {name}", message)
            self._client.metadata.created(name, topic_id)
        await self._wait_partitions(name, partitions)
        return await self._wait_config(name, config)

    async def alter(
        self, name: str, partitions: int | None, config: Mapping[str, str | None]
    ) -> TopicDescription:
        """As `Backend.alter_topic`."""
        before = await self.describe(name)
        count = len(before.partitions)
        if partitions is not None:
            _check_count(name, partitions)
            if partitions < count:
                raise InvalidArgument(
                    f"topic {name} has {count} partitions, which cannot be reduced to {partitions}"
                )
        grows = partitions is not None and partitions > count
        if grows and config:
            await self._grow(name, partitions, validate_only=True)
        if config:
            await self._alter_config(name, config)
        if grows:
            await self._grow(name, partitions)
        if partitions is not None:
            await self._wait_partitions(name, partitions)
        return await self._wait_config(name, config)

    async def delete(self, name: str) -> None:
        """As `Backend.delete_topic`."""
        if name in _INTERNAL:
            raise UnknownTopic(f"unknown topic {name}")
        answer = await self._ask(DELETE_TOPICS([name], _TIMEOUT_MS))
        for _, code in answer.topics:
            if code == UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"unknown topic {name}")
            _check(code, f"cannot delete topic {name}")
        self._client.metadata.deleted(name)
        self._client.tell({name})

    # --- changes ----------------------------------------------------------------------------------

    async def _alter_config(self, name: str, config: Mapping[str, str | None]) -> None:
        changes = [
            (_kafka_name(option), ALTER_OPTION_DELETE if value is None else ALTER_OPTION_SET, value)
            for option, value in config.items()
        ]
        answer = await self._ask(INCREMENTAL_ALTER_CONFIGS([(TOPIC_RESOURCE, name, changes)], False))
        for code, message, *_ in answer.responses:
            _check_topic(name, code)
            _check(code, f"cannot change the options of topic {name}", message)

    async def _grow(self, name: str, partitions: int | None, *, validate_only: bool = False) -> None:
        request = CREATE_PARTITIONS([(name, partitions, None)], _TIMEOUT_MS, validate_only)
        answer = await self._ask(request)
        for _, code, message in answer.topics:
            _check_topic(name, code)
            _check(code, f"cannot grow topic {name} to {partitions} partitions", message)

    async def _wait_partitions(self, name: str, partitions: int) -> None:
        """Wait until the metadata has at least this number of partitions, all with leaders."""
        attempts = short_attempts()
        while True:
            await self._refresh([name])
            known = self._client.metadata.topics.get(name)
            count = sum(each.leader >= 0 for each in known.partitions) if known else 0
            if known and count == len(known.partitions) >= partitions:
                return
            await attempts.again(
                Unavailable(
                    f"topic {name} was changed, but only {count} of {partitions} partitions have leaders so far"
                )
            )

    async def _wait_config(self, name: str, config: Mapping[str, str | None]) -> TopicDescription:
        """Wait until the description has these options, and return it."""
        attempts = short_attempts()
        while True:
            try:
                described = await self.describe(name)
                if all(described.config.get(option) == value for option, value in config.items()):
                    return described
                failure: PixyError = Unavailable(
                    f"the options of topic {name} were set, but have not reached all brokers yet"
                )
            except UnknownTopic as error:
                failure = error  # from a lagging broker
            await attempts.again(failure)

    # --- what is known ----------------------------------------------------------------------------

    async def _with_configs(self, names: Sequence[str]) -> list[TopicDescription]:
        """Descriptions of the topics that exist, with their current options."""
        described = []
        for at in range(0, len(names), _CONFIGS_AT_ONCE):
            some = names[at : at + _CONFIGS_AT_ONCE]
            resources = [(TOPIC_RESOURCE, name, None) for name in some]
            answer = await self._ask(DESCRIBE_CONFIGS(resources, False), repeatable=True)
            for code, message, _, name, entries in answer.resources:
                if code == UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                _check(code, f"cannot read the options of topic {name}", message)
                config = {
                    _pixy_name(option): value or ""
                    for option, value, _, source, *_ in entries
                    if source == _SET_FOR_THE_TOPIC
                }
                description = self._client.metadata.set_config(name, config)
                if description is not None:
                    described.append(description)
        return described

    async def _refresh(self, names: Sequence[str] | None) -> None:
        attempts = short_attempts()
        while True:
            try:
                await self._client.refresh(names)
                return
            except BrokerFault as error:
                await attempts.again(error)

    async def _ask(self, request: Any, *, repeatable: bool = False) -> Any:
        """The response of any broker; a change that may have been executed is not sent again."""
        attempts = short_attempts()
        timeout_s = _READ_S if repeatable else _CHANGE_S
        while True:
            try:
                return await self._client.send_any(request, timeout_s=timeout_s, repeatable=repeatable)
            except BrokerFault as error:
                if error.sent and not repeatable:
                    raise
                await attempts.again(error)


def _kafka_name(option: str) -> str:
    if "." in option:
        raise InvalidArgument(f"topic option {option} is unknown; options have Kafka's names with _ for dots")
    return option.replace("_", ".")


def _pixy_name(option: str) -> str:
    return option.replace(".", "_")


def _check_count(name: str, partitions: int) -> None:
    if not 1 <= partitions <= _PARTITIONS_MAX:
        raise InvalidArgument(
            f"topic {name} cannot have {partitions} partitions; 1 to {_PARTITIONS_MAX} are allowed"
        )


def _check_topic(name: str, code: int) -> None:
    if code == UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"unknown topic {name}")


def _check(code: int, what: str, message: str | None = None) -> None:
    if code:
        raise error_for_code(code, what, message)
