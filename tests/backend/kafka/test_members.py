"""pixy/backend/kafka/members.py: metadata of members, and their assignments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.backend.kafka.members import assign
from pixy.kafka_protocol.consumer import decode_assignment


def assigned(
    protocol: str, wants: dict[str, list[str]], counts: dict[str, int]
) -> dict[str, dict[str, list[int]]]:
    return {
        member: {topic: list(numbers) for topic, numbers in decode_assignment(encoded).items()}
        for member, encoded in assign(protocol, wants, counts)
    }


def test_members_sorted_by_id_get_contiguous_ranges_and_the_first_ones_get_the_extra() -> None:
    wants = {"c": ["t"], "a": ["t"], "b": ["t"]}
    assert assigned("range", wants, {"t": 5}) == {"a": {"t": [0, 1]}, "b": {"t": [2, 3]}, "c": {"t": [4]}}


def test_every_topic_is_shared_among_its_subscribers() -> None:
    wants = {"a": ["one", "two"], "b": ["two"]}
    assert assigned("range", wants, {"one": 3, "two": 2}) == {
        "a": {"one": [0, 1, 2], "two": [0]},
        "b": {"two": [1]},
    }


@pytest.mark.parametrize("protocol", ["range", "roundrobin"])
def test_a_missing_topic_is_skipped_and_the_others_are_not(protocol: str) -> None:
    wants = {"a": ["missing", "there"], "b": ["missing"]}
    assert assigned(protocol, wants, {"there": 2}) == {"a": {"there": [0, 1]}, "b": {}}


@pytest.mark.slow
@given(
    st.sampled_from(["range", "roundrobin"]),
    st.dictionaries(
        st.text("ab", min_size=1, max_size=3), st.sets(st.sampled_from("tuvw")), min_size=1, max_size=5
    ),
    st.dictionaries(st.sampled_from("tuv"), st.integers(1, 7)),
)
def test_every_subscribed_partition_has_one_subscribed_owner(
    protocol: str, wants: dict[str, set[str]], counts: dict[str, int]
) -> None:
    shared = assigned(protocol, {member: sorted(topics) for member, topics in wants.items()}, counts)
    assert set(shared) == set(wants)
    owners = [
        (t, n, member) for member, topics in shared.items() for t, numbers in topics.items() for n in numbers
    ]
    wanted = {topic for topics in wants.values() for topic in topics}
    assert sorted((t, n) for t, n, _ in owners) == sorted(
        (t, n) for t, count in counts.items() if t in wanted for n in range(count)
    )
    assert all(t in wants[member] for t, _, member in owners)
