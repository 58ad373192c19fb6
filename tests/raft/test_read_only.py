"""Reads are confirmed in order, by the number that a quorum has echoed, against a naive count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.raft import ConfState, Message, MessageType
from pixy.raft.read_only import ReadOnly

VOTERS = (1, 2, 3)
EVENTS = st.lists(st.tuples(st.sampled_from(["read", 1, 2, 3, 9]), st.integers(0, 12)), max_size=40)


def number(count: int) -> bytes:
    return count.to_bytes(8, "little")


@pytest.mark.slow
@given(EVENTS)
def test_a_read_is_confirmed_once_two_of_three_have_echoed_its_number(
    events: list[tuple[str | int, int]],
) -> None:
    reads, asked, served = ReadOnly(), list[Message](), list[Message]()
    repeated = dict.fromkeys(VOTERS, 0)
    for what, count in events:
        if isinstance(what, str):
            asked.append(Message(MessageType.READ_INDEX, 1))
            reads.add(asked[-1], len(asked))
            continue
        seen = min(count, len(asked))
        reads.acknowledge(what, number(seen) if seen else b"")
        if what in repeated:
            repeated[what] = max(repeated[what], seen)
        served += [request for request, _ in reads.confirmed(ConfState(VOTERS))]
        expected = sum(
            1 for at in range(1, len(asked) + 1) if sum(got >= at for got in repeated.values()) >= 2
        )
        assert served == asked[:expected]
        assert reads.context() == (number(len(asked)) if len(served) < len(asked) else b"")


def test_both_halves_of_a_joint_configuration_confirm() -> None:
    reads, request = ReadOnly(), Message(MessageType.READ_INDEX, 1)
    reads.add(request, 7)
    config = ConfState(voters=(1,), voters_outgoing=(2,))
    reads.acknowledge(1, number(1))
    assert reads.confirmed(config) == []
    reads.acknowledge(2, number(1))
    assert reads.confirmed(config) == [(request, 7)]
    assert reads.confirmed(config) == []


def test_a_context_that_is_not_a_number_confirms_nothing() -> None:
    reads = ReadOnly()
    reads.add(Message(MessageType.READ_INDEX, 1), 7)
    reads.acknowledge(1, b"ctx")
    assert reads.confirmed(ConfState((1,))) == []
