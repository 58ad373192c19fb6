"""Options of topics under Kafka's names.

a topic's own           `retention.ms` and others that pixy has, with dots for underscores
the same for all        accepted if the value is the one that holds, or refused
others                  refused: an option that has no effect would be a promise
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from pixy.config import ProxyConfig
from pixy.errors import InvalidArgument

OWN = ("retention.ms", "retention.bytes", "segment.ms", "segment.bytes")
"""Options that a topic may set."""

_FIXED = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "unclean.leader.election.enable": "false",
    "preallocate": "false",
}


class ConfigSource(IntEnum):
    """Origins of values, as DescribeConfigs says them."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """Types of values, as DescribeConfigs says them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class KnownOption(NamedTuple):
    """The value of an option, and where it comes from."""

    name: str
    value: str
    source: ConfigSource
    type: ConfigType

    @property
    def is_read_only(self) -> bool:
        """True unless a topic may set it."""
        return self.name not in OWN


def own_options(given: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Options of a new topic by pixy's names. Those that hold anyway are left out.

    Raises:
        InvalidArgument: an option is unknown, named twice, without a value, or cannot have it.
    """
    found: dict[str, str] = {}
    for name, value in given:
        if value is None:
            raise InvalidArgument(f"topic option {name} has no value")
        if name in _FIXED:
            check_fixed(name, value)
            continue
        key = own_name(name)
        if key in found:
            raise InvalidArgument(f"topic option {name} is named more than once")
        found[key] = value
    return found


def own_name(name: str) -> str:
    """The name that pixy has for an option that a topic may set.

    Raises:
        InvalidArgument: there is none.
    """
    if name not in OWN:
        known = ", ".join((*OWN, *_FIXED))
        raise InvalidArgument(f"topic option {name} is not supported; supported are {known}")
    return name.replace(".", "_")


def is_fixed(name: str) -> bool:
    """True for an option whose value is the same for all topics."""
    return name in _FIXED


def check_fixed(name: str, value: str) -> None:
    """Check the value of an option that cannot be changed.

    Raises:
        InvalidArgument: another value holds.
    """
    if value != _FIXED[name]:
        raise InvalidArgument(f"topic option {name} is {value!r}; only {_FIXED[name]!r} is supported")


def topic_options(own: Mapping[str, str], config: ProxyConfig) -> list[KnownOption]:
    """All options of a topic.

    Args:
        own: those that it has set, by pixy's names.
        config: of the cluster.
    """
    storage = config.storage
    defaults = {
        "retention.ms": round(storage.retention * 1000) or -1,
        "retention.bytes": storage.retention_bytes or -1,
        "segment.ms": round(storage.segment_age * 1000),
        "segment.bytes": storage.segment_bytes,
    }
    found = []
    for name in OWN:
        value = own.get(name.replace(".", "_"))
        source = ConfigSource.DEFAULT if value is None else ConfigSource.TOPIC
        kind = ConfigType.INT if name == "segment.bytes" else ConfigType.LONG
        found.append(KnownOption(name, str(defaults[name]) if value is None else value, source, kind))
    largest = str(config.producer.max_message_bytes)
    found.append(KnownOption("max.message.bytes", largest, ConfigSource.STATIC_BROKER, ConfigType.INT))
    for name, value in _FIXED.items():
        kind = ConfigType.BOOLEAN if value == "false" else ConfigType.STRING
        kind = ConfigType.LIST if name == "cleanup.policy" else kind
        found.append(KnownOption(name, value, ConfigSource.DEFAULT, kind))
    return found


def broker_options(config: ProxyConfig) -> list[KnownOption]:
    """Options of a broker that clients look at."""
    source, producer = ConfigSource.STATIC_BROKER, config.producer
    auto_create = "true" if config.auto_create_topics else "false"
    return [
        KnownOption("auto.create.topics.enable", auto_create, source, ConfigType.BOOLEAN),
        KnownOption("num.partitions", str(config.default_partitions), source, ConfigType.INT),
        KnownOption("message.max.bytes", str(producer.max_message_bytes), source, ConfigType.INT),
        KnownOption("log.message.timestamp.type", "CreateTime", ConfigSource.DEFAULT, ConfigType.STRING),
    ]
