"""Options of a single topic, overriding the cluster's (`storage` in the configuration)."""

import re
from collections.abc import Mapping

from pixy.config import StorageConfig
from pixy.errors import InvalidArgument
from pixy.storage import LogOptions

__all__ = ["check_topic_config", "log_options"]

_LONG_MAX = 2**63 - 1
_SEGMENT_BYTES_MAX = 1 << 30
"""Kafka's tools count the bytes of a segment in 31 bits, as do the positions in its index."""
_REPLICATION_MAX = 7
_BOUNDS = {
    "retention_bytes": (-1, _LONG_MAX),
    "retention_ms": (-1, _LONG_MAX),
    "segment_bytes": (1, _SEGMENT_BYTES_MAX),
    "segment_ms": (1, _LONG_MAX),
    "replication": (1, _REPLICATION_MAX),
}
"""Least and greatest value of each option: the number of replicas, and Kafka's options by their
names with underscores for dots; -1 stands for no bound.
"""

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def check_topic_config(config: Mapping[str, str]) -> None:
    """Reject options and values that no topic can have.

    Raises:
        InvalidArgument: names the option, the value and the allowed range.
    """
    for name, value in config.items():
        if name not in _BOUNDS:
            raise InvalidArgument(f"topic option {name} is unknown; known options are {', '.join(_BOUNDS)}")
        least, greatest = _BOUNDS[name]
        if not _INTEGER.fullmatch(value) or not least <= int(value) <= greatest:
            raise InvalidArgument(
                f"topic option {name} is {value!r}; a whole number from {least} to {greatest} is allowed"
            )


def log_options(storage: StorageConfig, config: Mapping[str, str]) -> LogOptions:
    """Options of a topic's partition logs. `config` must be checked."""
    cluster = {
        "retention_bytes": storage.retention_bytes or -1,
        "retention_ms": round(storage.retention * 1000) or -1,
        "segment_bytes": storage.segment_bytes,
        "segment_ms": round(storage.segment_age * 1000),
    }
    values = cluster | {name: int(value) for name, value in config.items()}
    return LogOptions(
        # A topic may have been created with more before there was a bound.
        segment_bytes=min(values["segment_bytes"], _SEGMENT_BYTES_MAX),
        segment_ms=values["segment_ms"],
        retention_bytes=None if values["retention_bytes"] < 0 else values["retention_bytes"],
        retention_ms=None if values["retention_ms"] < 0 else values["retention_ms"],
    )
