"""Assignment of partitions by the leader of a consumer group. Pure.

The range assignor is offered first, round robin for groups whose other members support nothing
else. Subscriptions that another program wrote may be newer or malformed; see
`kafka_protocol.consumer`.
"""

from collections.abc import Collection, Mapping, Sequence

from pixy.kafka_protocol.assignors import assign_round_robin, assign_topic_ranges
from pixy.kafka_protocol.consumer import encode_assignment

PROTOCOL_TYPE = "consumer"

Partitions = Mapping[str, tuple[int, ...]]
"""Topic -> partitions, ascending."""

_ASSIGNORS = {"range": assign_topic_ranges, "roundrobin": assign_round_robin}

PROTOCOLS: tuple[str, ...] = tuple(_ASSIGNORS)
"""Names of the assignors, in order of preference."""


def assign(
    protocol: str, subscriptions: Mapping[str, Collection[str]], counts: Mapping[str, int]
) -> Sequence[tuple[str, bytes]]:
    """Assign the partitions of all topics to the members.

    Args:
        protocol: one of `PROTOCOLS`.
        subscriptions: topics by member id.
        counts: partitions by topic; topics that are missing are passed over.

    Returns:
        The encoded assignment of every member, by member id.
    """
    wanted = {member: list(filter(counts.get, topics)) for member, topics in sorted(subscriptions.items())}
    assigned = _ASSIGNORS[protocol](wanted, counts)
    return [(member, encode_assignment(partitions)) for member, partitions in assigned.items()]
