"""Options of a single topic, overriding the cluster's (`storage` in the configuration).

A topic may have values that are not allowed any more, from a release before, or that never were,
from a node with a bug. They count as the nearest allowed value, and what is no number as not set.
"""

import re
from collections.abc import Iterable, Mapping

from pixy.config import StorageConfig
from pixy.errors import InvalidArgument
from pixy.storage import LogOptions

_LONG_MAX = 2**63 - 1
_SEGMENT_BYTES_MIN = 64 << 10
_SEGMENT_MS_MIN = 60_000
"""Each segment is two files or three: a topic has no file for each batch."""
_SEGMENT_BYTES_MAX = 1 << 30
"""Kafka's tools count the bytes of a segment in 31 bits, as do the positions in its index."""
_REPLICATION_MAX = 7
_BOUNDS = {
    "retention_bytes": (-1, _LONG_MAX),
    "retention_ms": (-1, _LONG_MAX),
    "segment_bytes": (_SEGMENT_BYTES_MIN, _SEGMENT_BYTES_MAX),
    "segment_ms": (_SEGMENT_MS_MIN, _LONG_MAX),
    "replication": (1, _REPLICATION_MAX),
}
"""Least and greatest value of each option: the number of replicas, and Kafka's options by their
names with underscores for dots; -1 stands for no bound.
"""
CLEANUP_POLICY = "cleanup_policy"
_POLICIES = ("delete", "compact", "compact,delete", "delete,compact")
"""Values of Kafka's option. Records are never compacted; with `compact` alone none is deleted."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def check_topic_config(config: Mapping[str, str]) -> None:
    """Reject options and values that no topic can have.

    Raises:
        InvalidArgument: names the option, the value and the allowed range.
    """
    check_option_names(config)
    for name, value in config.items():
        if name == CLEANUP_POLICY:
            _check_policy(value)
            continue
        least, greatest = _BOUNDS[name]
        if not _INTEGER.fullmatch(value) or not least <= int(value) <= greatest:
            raise InvalidArgument(
                f"topic option {name} is {value!r}; a whole number from {least} to {greatest} is allowed"
            )


def check_option_names(names: Iterable[str]) -> None:
    """Reject options that no topic can have.

    Raises:
        InvalidArgument: names the option, and those that there are.
    """
    for name in names:
        if name not in _BOUNDS and name != CLEANUP_POLICY:
            known = ", ".join((*_BOUNDS, CLEANUP_POLICY))
            raise InvalidArgument(f"topic option {name} is unknown; known options are {known}")


def is_compacted(config: Mapping[str, str | None]) -> bool:
    """True if options ask for the compaction of records."""
    return "compact" in (config.get(CLEANUP_POLICY) or "")


def _check_policy(value: str) -> None:
    if value not in _POLICIES:
        allowed = ", ".join(_POLICIES)
        raise InvalidArgument(
            f"topic option {CLEANUP_POLICY} is {value[:60]!r}; one of these is allowed: {allowed}"
        )


def check_forwarded_config(config: Mapping[str, str]) -> None:
    """Reject options that no release takes of a client: another node may have other bounds.

    Raises:
        InvalidArgument: names the option and the value.
    """
    check_option_names(config)
    for name, value in config.items():
        if name == CLEANUP_POLICY:
            _check_policy(value)
        elif not _INTEGER.fullmatch(value):
            raise InvalidArgument(f"topic option {name} is {value[:60]!r}; a whole number is allowed")


def log_options(storage: StorageConfig, config: Mapping[str, str]) -> LogOptions:
    """Options of a topic's partition logs."""
    cluster = {
        "retention_bytes": storage.retention_bytes or -1,
        "retention_ms": round(storage.retention * 1000) or -1,
        "segment_bytes": storage.segment_bytes,
        "segment_ms": round(storage.segment_age * 1000),
    }
    values = cluster | {
        name: min(max(int(value), _BOUNDS[name][0]), _BOUNDS[name][1])
        for name, value in config.items()
        if name in _BOUNDS and _INTEGER.fullmatch(value)
    }
    if config.get(CLEANUP_POLICY) == "compact":
        # As in Kafka, which removes a record of such a topic only for a newer one with its key.
        values["retention_bytes"] = values["retention_ms"] = -1
    return LogOptions(
        segment_bytes=values["segment_bytes"],
        segment_ms=values["segment_ms"],
        retention_bytes=None if values["retention_bytes"] < 0 else values["retention_bytes"],
        retention_ms=None if values["retention_ms"] < 0 else values["retention_ms"],
    )
