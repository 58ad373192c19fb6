"""Schemas of the "consumer" protocol type: what the members of a group and their leader exchange by
JoinGroup and SyncGroup.

    subscription     version, topics, user data
    assignment       version, partitions by topic, user data

Newer versions append fields, which are passed over.
"""

from collections.abc import Iterable, Mapping
from io import BytesIO

from pixy.kafka_protocol.fields import BYTES, INT16, INT32, STRING, Array, Struct

_SUBSCRIPTION = Struct(("version", INT16), ("topics", Array(STRING)), ("user_data", BYTES))
_ASSIGNMENT = Struct(
    ("version", INT16),
    ("topics", Array(("topic", STRING), ("partitions", Array(INT32)))),
    ("user_data", BYTES),
)
_VERSION = 0


def encode_subscription(topics: Iterable[str]) -> bytes:
    """The subscription of a member."""
    return _SUBSCRIPTION.encode((_VERSION, sorted(topics), b""))


def decode_subscription(encoded: bytes) -> frozenset[str]:
    """The topics that a member subscribes to; none if the bytes are empty or malformed."""
    try:
        _, topics, _ = _SUBSCRIPTION.decode(BytesIO(encoded))
    except ValueError:
        return frozenset()
    return frozenset(topics or ())


def encode_assignment(partitions: Mapping[str, list[int]]) -> bytes:
    """The assignment of a member."""
    return _ASSIGNMENT.encode((_VERSION, sorted(partitions.items()), b""))


def decode_assignment(encoded: bytes) -> dict[str, tuple[int, ...]]:
    """Partitions by topic, ascending, of an assignment; nothing if the bytes are empty or
    malformed.
    """
    try:
        _, topics, _ = _ASSIGNMENT.decode(BytesIO(encoded))
    except ValueError:
        return {}
    return {topic: tuple(sorted(partitions)) for topic, partitions in topics or () if partitions}
