from typing import Any

import pytest

from pixy.kafka_messages.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pixy.kafka_messages.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow

DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 44
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND = 0, 1, 2


async def described(served: ServedKafka, *asked: DescribeConfigsResource, version: int = 4) -> list[Any]:
    request = DescribeConfigsRequest([*asked], True)
    return list((await served.client.call(DESCRIBE_CONFIGS, version, request)).results)


@pytest.mark.parametrize("version", range(1, 5))
async def test_options_of_a_topic(served: ServedKafka, version: int) -> None:
    await served.proxy.create_topic("t", 1, {"retention_ms": "60000"})
    (found,) = await described(served, DescribeConfigsResource(TOPIC, "t", None), version=version)
    options = {each.name: each for each in found.configs}
    assert (options["retention.ms"].value, options["retention.ms"].config_source) == ("60000", 1)
    assert (options["segment.ms"].config_source, options["segment.ms"].read_only) == (5, False)
    assert (options["cleanup.policy"].value, options["cleanup.policy"].read_only) == ("delete", False)
    assert options["max.message.bytes"].value == "1000000"
    assert options["retention.ms"].synonyms[0].value == "60000"
    assert options["retention.ms"].config_type == (5 if version >= 3 else 0)


async def test_some_options_of_some_resources(served: ServedKafka) -> None:
    await served.proxy.create_topic("t", 1, {})
    found = await described(
        served,
        DescribeConfigsResource(TOPIC, "t", ["segment.bytes", "none"]),
        DescribeConfigsResource(TOPIC, "none", None),
        DescribeConfigsResource(BROKER, "1", ["num.partitions"]),
        DescribeConfigsResource(BROKER, "9", None),
        DescribeConfigsResource(BROKER_LOGGER, "1", None),
    )
    assert [(each.error_code, [option.name for option in each.configs]) for each in found] == [
        (0, ["segment.bytes"]),
        (3, []),
        (0, ["num.partitions"]),
        (40, []),
        (40, []),
    ]
    assert found[2].configs[0].value == "4"


async def altered(
    served: ServedKafka, *changes: tuple[str, int, str | None], kind: int = TOPIC, **fields: Any
) -> int:
    configs = [AlterableConfig(name, operation, value) for name, operation, value in changes]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, "t", configs)], **fields)
    (found,) = (await served.client.call(INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
    assert bool(found.error_message) == bool(found.error_code)
    return int(found.error_code)


async def test_options_are_set_and_reset(served: ServedKafka) -> None:
    assert await altered(served, ("retention.ms", SET, "1000")) == 3
    await served.proxy.create_topic("t", 1, {"segment_ms": "70000"})
    assert await altered(served, ("retention.ms", SET, "60000"), ("segment.ms", DELETE, None)) == 0
    assert (await served.proxy.describe_topic("t")).config == {"retention_ms": "60000"}
    assert await altered(served, ("retention.ms", SET, "70000"), validate_only=True) == 0
    assert await altered(served, ("cleanup.policy", SET, "delete"), ("compression.type", DELETE, None)) == 0
    assert (await served.proxy.describe_topic("t")).config == {"retention_ms": "60000"}


async def test_the_policy_of_compaction_is_kept(served: ServedKafka) -> None:
    async def policy() -> tuple[str, int]:
        (found,) = await described(served, DescribeConfigsResource(TOPIC, "t", ["cleanup.policy"]))
        return found.configs[0].value, found.configs[0].config_source

    await served.proxy.create_topic("t", 1, {})
    lag = ("min.compaction.lag.ms", SET, "60000")
    assert await altered(served, ("cleanup.policy", SET, "compact"), lag) == 0
    assert (await served.proxy.describe_topic("t")).config == {"cleanup_policy": "compact"}
    assert await policy() == ("compact", 1)
    assert await altered(served, ("cleanup.policy", SET, "compact, delete")) == 0
    assert await policy() == ("compact,delete", 1)
    assert await altered(served, ("cleanup.policy", SET, "delete")) == 0
    assert await policy() == ("delete", 5)


@pytest.mark.parametrize(
    "change",
    [
        ("retention.ms", SET, "x"),
        ("retention.ms", SET, None),
        ("retention.ms", APPEND, "1"),
        ("cleanup.policy", SET, "compacted"),
        ("cleanup.policy", APPEND, "compact"),
        ("min.compaction.lag.ms", SET, "-1"),
        ("no.such", SET, "1"),
        ("replication", SET, "1"),
    ],
)
async def test_options_that_cannot_be_set_are_refused(
    served: ServedKafka, change: tuple[str, int, str | None]
) -> None:
    await served.proxy.create_topic("t", 1, {})
    assert await altered(served, change) == 40
    assert (await served.proxy.describe_topic("t")).config == {}


async def test_only_options_of_topics_are_changed(served: ServedKafka) -> None:
    assert await altered(served, ("num.partitions", SET, "1"), kind=BROKER) == 42
