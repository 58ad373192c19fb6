"""DescribeConfigs and IncrementalAlterConfigs: options of topics; those of brokers are shown."""

from collections.abc import Sequence

import structlog

from pixy.aio.steps import in_steps
from pixy.api.kafka.brokers import Brokers
from pixy.api.kafka.codes import INVALID_CONFIG, INVALID_REQUEST, option_code, text_of
from pixy.api.kafka.topic_options import (
    KnownOption,
    broker_options,
    check_fixed,
    is_fixed,
    own_name,
    own_value,
    topic_options,
)
from pixy.config import ProxyConfig
from pixy.errors import InvalidArgument, PixyError
from pixy.kafka_messages.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from pixy.kafka_messages.generated.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pixy.proxy import Proxy
from pixy.wire import WireExchange

log = structlog.get_logger(__name__)

_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1


class ConfigsApi:
    """Handlers of DescribeConfigs and IncrementalAlterConfigs.

    Args:
        proxy: of the cluster.
        brokers: of the cluster.
        config: of the cluster.
    """

    def __init__(self, proxy: Proxy, brokers: Brokers, config: ProxyConfig) -> None:
        self._proxy = proxy
        self._brokers = brokers
        self._config = config

    async def describe_configs(
        self, exchange: WireExchange, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse:
        """Show options."""
        with_synonyms = request.include_synonyms
        results = [await self._described(each, with_synonyms) async for each in in_steps(request.resources)]
        return DescribeConfigsResponse(results=results)

    async def _described(self, asked: DescribeConfigsResource, with_synonyms: bool) -> DescribeConfigsResult:
        kind, name = asked.resource_type, asked.resource_name
        try:
            options = await self._options(kind, name)
        except PixyError as error:
            return DescribeConfigsResult(option_code(error), text_of(error), kind, name, [])
        keys = asked.configuration_keys
        shown = [each for each in options if keys is None or each.name in keys]
        return DescribeConfigsResult(0, None, kind, name, [_shown(each, with_synonyms) for each in shown])

    async def _options(self, kind: int, name: str) -> Sequence[KnownOption]:
        if kind == _TOPIC:
            topic = await self._proxy.describe_topic(name)
            return topic_options(topic.config, self._config)
        if kind == _BROKER and name in ("", str(self._brokers.own_id)):
            return broker_options(self._config)
        raise InvalidArgument(
            f"resource {name!r} of type {kind} has no options here, only topics and broker {self._brokers.own_id}"
        )

    async def incremental_alter_configs(
        self, exchange: WireExchange, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """Change options of topics."""
        responses = []
        async for each in in_steps(request.resources):
            code, message = await self._altered(each, exchange.peer, validate_only=request.validate_only)
            responses.append(
                AlterConfigsResourceResponse(code, message, each.resource_type, each.resource_name)
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    async def _altered(
        self, asked: AlterConfigsResource, peer: str, *, validate_only: bool
    ) -> tuple[int, str | None]:
        """Code and message for one topic."""
        if asked.resource_type != _TOPIC:
            return INVALID_REQUEST, "only options of topics can be changed"
        try:
            changes = _changes(asked)
        except InvalidArgument as error:
            return INVALID_CONFIG, text_of(error)
        try:
            if validate_only or not changes:
                await self._proxy.describe_topic(asked.resource_name)
            else:
                await self._proxy.alter_topic(asked.resource_name, None, changes)
                log.info(
                    "a topic was changed",
                    topic=asked.resource_name,
                    options=", ".join(changes),
                    asked_by=peer,
                )
        except PixyError as error:
            return option_code(error), text_of(error)
        return 0, None


def _changes(asked: AlterConfigsResource) -> dict[str, str | None]:
    """Options to set, or to reset with None, by pixy's names.

    Raises:
        InvalidArgument: one is unknown, or cannot be changed so.
    """
    changes: dict[str, str | None] = {}
    for each in asked.configs:
        if each.config_operation not in (_SET, _DELETE):
            raise InvalidArgument(f"topic option {each.name} can be set and reset, and not added to")
        value = each.value if each.config_operation == _SET else None
        if each.config_operation == _SET and value is None:
            raise InvalidArgument(f"topic option {each.name} has no value")
        if not is_fixed(each.name):
            name = own_name(each.name)
            changes[name] = None if value is None else own_value(name, value)
        elif value is not None:
            check_fixed(each.name, value)
    return changes


def _shown(option: KnownOption, with_synonyms: bool) -> DescribeConfigsResourceResult:
    name, value, source, kind = option
    synonyms = [DescribeConfigsSynonym(name, value, source)] if with_synonyms else []
    return DescribeConfigsResourceResult(
        name, value, option.is_read_only, source, False, synonyms, kind, None
    )
