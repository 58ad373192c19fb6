"""Subscriptions and assignments of group members."""

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from pixy.kafka_protocol.consumer import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

# From a Java consumer of Kafka 4.3: version 3, topics, no user data, owned partitions, generation,
# rack.
NEWER = bytes.fromhex("0003 00000001 0006 6f7264657273 ffffffff 00000000 ffffffff ffff")


def test_a_subscription_decodes_to_itself() -> None:
    assert decode_subscription(encode_subscription({"b", "a"})) == {"a", "b"}
    decoded = ConsumerProtocolMemberMetadata.decode(encode_subscription({"b", "a"}))
    assert (decoded.version, decoded.subscription) == (0, ["a", "b"])


def test_fields_added_by_newer_consumers_are_ignored() -> None:
    assert decode_subscription(NEWER) == {"orders"}


@pytest.mark.parametrize("cut", range(14))
def test_a_truncated_subscription_is_empty(cut: int) -> None:
    assert decode_subscription(NEWER[:cut]) == frozenset()


def test_an_assignment_is_sorted_and_has_no_empty_topics() -> None:
    encoded = ConsumerProtocolMemberAssignment(0, [("t", [2, 0]), ("u", [])], b"").encode()
    assert decode_assignment(encoded) == {"t": (0, 2)}


@pytest.mark.parametrize("encoded", [b"", b"\0", b"not an assignment", b"\0\0\xff\xff\xff\xff"])
def test_an_invalid_assignment_is_empty(encoded: bytes) -> None:
    assert decode_assignment(encoded) == {}


def test_an_assignment_has_the_bytes_of_aiokafkas() -> None:
    expected = ConsumerProtocolMemberAssignment(0, [("t", [0, 2]), ("u", [])], b"").encode()
    assert encode_assignment({"u": [], "t": [0, 2]}) == expected
