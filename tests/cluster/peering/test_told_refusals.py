"""Older selves of nodes that others refuse."""

import pytest

from pixy.cluster.log.peer_starts import PeerStart, StartClaim
from pixy.cluster.peering.told_refusals import ToldRefusals, decode_starts, encode_starts
from pixy.cluster.state.nodes import NODES_MAX
from pixy.raft import MalformedMessage


def claim(incarnation: int = 6, found: int = 95, process: bytes = b"copy") -> StartClaim:
    return StartClaim(3, PeerStart(incarnation, found + 5), process, found)


@pytest.mark.parametrize(
    ("known", "refused"),
    [
        (PeerStart(5, 95), False),
        (PeerStart(5, 96), True),
        (PeerStart(6, 100), False),
        (PeerStart(6, 101), True),
        (PeerStart(7, 1), True),
    ],
)
def test_a_start_is_refused_that_lacks_what_another_node_knows(known: PeerStart, refused: bool) -> None:
    told = ToldRefusals()
    told.tell(1, {3: known}, 10.0)
    assert (told.why_refused(claim(), 10.0) is not None) == refused


def test_what_a_node_says_counts_for_a_while() -> None:
    told = ToldRefusals()
    told.tell(1, {3: PeerStart(5, 200)}, 10.0)
    assert told.why_refused(claim(), 11.9) is not None
    assert told.why_refused(claim(), 12.1) is None
    told.tell(1, {}, 12.0)
    assert told.why_refused(claim(), 12.0) is None


def test_a_process_that_has_been_here_for_long_is_not_doubted() -> None:
    told = ToldRefusals()
    told.admitted(claim(), 0.0)
    told.tell(1, {3: PeerStart(5, 200)}, 9.0)
    assert [node_id for node_id, _ in told.doubted(9.0)] == [3]
    told.admitted(claim(), 9.5)
    told.tell(1, {3: PeerStart(5, 200)}, 10.5)
    assert [*told.doubted(10.5)] == []
    assert told.why_refused(claim(), 10.5) is None
    assert told.why_refused(claim(process=b"another"), 10.5) is not None


def test_a_node_that_has_left_says_nothing_more_and_is_not_doubted() -> None:
    told = ToldRefusals()
    told.admitted(claim(), 0.0)
    told.tell(1, {3: PeerStart(5, 200)}, 1.0)
    told.forget(3)
    assert [*told.doubted(1.0)] == []
    told.forget(1)
    assert told.why_refused(claim(), 1.0) is None


def test_starts_of_as_many_nodes_as_a_cluster_has_are_told() -> None:
    starts = {number: PeerStart(number, 2 * number) for number in range(1, NODES_MAX + 2)}
    decoded = decode_starts(encode_starts(starts))
    assert decoded == {number: starts[number] for number in range(1, NODES_MAX + 1)}
    twice = encode_starts(decoded) * 2
    with pytest.raises(MalformedMessage, match="at most 100 are possible"):
        decode_starts(twice)
