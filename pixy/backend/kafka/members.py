"""What members of a consumer group say of themselves, and how its leader shares out the partitions. Pure.

A member sends the topics that it wants, and gets the partitions that it has, in the format of Kafka's "consumer" protocol. What comes from
other programs may be newer (more fields follow, which are passed over) or not readable (such a member wants and has nothing).

Partitions are shared by aiokafka's range assignor, which is Kafka's: topic by topic, members sorted by id, contiguous ranges, the first
members get what does not divide. Round robin is offered besides, for groups whose other members know nothing else.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from pixy.assignors import assign_round_robin, assign_topic_ranges

__all__ = [
    "PROTOCOLS",
    "PROTOCOL_TYPE",
    "Partitions",
    "assign",
    "decode_assignment",
    "decode_subscription",
    "encode_subscription",
]

PROTOCOL_TYPE = "consumer"

Partitions = Mapping[str, tuple[int, ...]]
"""Topic -> partitions, ascending."""

_ASSIGNORS = {"range": assign_topic_ranges, "roundrobin": assign_round_robin}

PROTOCOLS: tuple[str, ...] = tuple(_ASSIGNORS)
"""The ways of sharing out that we know, the one that we prefer first."""

_VERSION = 0


def encode_subscription(topics: Iterable[str]) -> bytes:
    """What a member says that wants these topics."""
    encoded: bytes = ConsumerProtocolMemberMetadata(_VERSION, sorted(topics), b"").encode()
    return encoded


def decode_subscription(metadata: bytes) -> frozenset[str]:
    """The topics that a member wants."""
    decoded = _decode(ConsumerProtocolMemberMetadata, metadata)
    return frozenset() if decoded is None else frozenset(decoded.subscription or ())


def decode_assignment(assignment: bytes) -> Partitions:
    """What a member has; nothing if it has not been told yet."""
    decoded = _decode(ConsumerProtocolMemberAssignment, assignment)
    if decoded is None:
        return {}
    return {topic: tuple(sorted(partitions)) for topic, partitions in decoded.assignment or () if partitions}


def assign(
    protocol: str, subscriptions: Mapping[str, Collection[str]], counts: Mapping[str, int]
) -> Sequence[tuple[str, bytes]]:
    """Share out partitions.

    Args:
        protocol: one of `PROTOCOLS`.
        subscriptions: the topics that each member wants, by member id.
        counts: partitions of each topic; missing topics are passed over.

    Returns:
        The encoded assignment of every member, by member id.
    """
    wanted = {member: list(filter(counts.get, topics)) for member, topics in sorted(subscriptions.items())}
    assigned = _ASSIGNORS[protocol](wanted, counts)
    return [
        (member, ConsumerProtocolMemberAssignment(_VERSION, sorted(topics.items()), b"").encode())
        for member, topics in assigned.items()
    ]


def _decode(kind: Any, encoded: bytes | None) -> Any:
    if not encoded:
        return None
    try:
        return kind.decode(encoded)
    except Exception:  # the bytes are another program's, and aiokafka raises whatever they lead to
        return None
