"""Options of topics under Kafka's names.

a topic's own           `retention.ms` and others that pixy has, with dots for underscores
kept                    `cleanup.policy`, because programs insist on `compact`: nothing is compacted
least times             accepted: what is never compacted stays longer than any of them
the same for all        accepted if the value is the one that holds, or refused
others                  refused: an option that has no effect would be a promise
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from pixy.config import ProxyConfig
from pixy.errors import InvalidArgument

_POLICY, _USUAL_POLICY = "cleanup.policy", "delete"
OWN = ("retention.ms", "retention.bytes", "segment.ms", "segment.bytes", _POLICY)
"""Options that a topic may set."""

_LEAST_TIMES = ("min.compaction.lag.ms", "delete.retention.ms")
"""Options that compaction alone has to honour; Kafka Streams sets the first one."""

_FIXED = {
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
        if is_fixed(name):
            check_fixed(name, value)
            continue
        key = own_name(name)
        if key in found:
            raise InvalidArgument(f"topic option {name} is named more than once")
        found[key] = value
    kept = {name: own_value(name, value) for name, value in found.items()}
    return {name: value for name, value in kept.items() if value is not None}


def own_value(name: str, value: str) -> str | None:
    """The value that a topic has for an option, by pixy's name; None for one that holds anyway."""
    if name != "cleanup_policy":
        return value
    value = value.replace(" ", "")
    return None if value == _USUAL_POLICY else value


def own_name(name: str) -> str:
    """The name that pixy has for an option that a topic may set.

    Raises:
        InvalidArgument: there is none.
    """
    if name not in OWN:
        known = ", ".join((*OWN, *_FIXED, *_LEAST_TIMES))
        raise InvalidArgument(f"topic option {name} is not supported; supported are {known}")
    return name.replace(".", "_")


def is_fixed(name: str) -> bool:
    """True for an option whose value is the same for all topics, or makes no difference."""
    return name in _FIXED or name in _LEAST_TIMES


def check_fixed(name: str, value: str) -> None:
    """Check the value of an option that cannot be changed.

    Raises:
        InvalidArgument: another value holds, or it is no time.
    """
    if name in _LEAST_TIMES:
        if not (value.isascii() and value.isdecimal()):
            raise InvalidArgument(f"topic option {name} is {value!r}; a whole number from 0 on is allowed")
    elif value != _FIXED[name]:
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
        _POLICY: _USUAL_POLICY,
    }
    kinds = {"segment.bytes": ConfigType.INT, _POLICY: ConfigType.LIST}
    found = []
    for name in OWN:
        value = own.get(name.replace(".", "_"))
        source = ConfigSource.DEFAULT if value is None else ConfigSource.TOPIC
        kind = kinds.get(name, ConfigType.LONG)
        found.append(KnownOption(name, str(defaults[name]) if value is None else value, source, kind))
    largest = str(config.producer.max_message_bytes)
    found.append(KnownOption("max.message.bytes", largest, ConfigSource.STATIC_BROKER, ConfigType.INT))
    for name, value in _FIXED.items():
        kind = ConfigType.BOOLEAN if value == "false" else ConfigType.STRING
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
