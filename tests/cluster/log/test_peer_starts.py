"""Starts of peers: an older self of a node is recognized by its incarnation or its flushes."""

import pytest

from pixy.cluster.log.peer_starts import PeerStart, PeerStarts, StartClaim
from pixy.entry_ids import INCARNATION_JUMP_MAX


def starts_of(*seen: PeerStart) -> PeerStarts:
    """Starts of node 2, all of them admitted."""
    starts = PeerStarts()
    assert [starts.admit(StartClaim(2, each)) for each in seen] == [None] * len(seen)
    return starts


@pytest.mark.parametrize(
    "start", [PeerStart(3, 100), PeerStart(3, 101), PeerStart(4, 100), PeerStart(9, 900)]
)
def test_a_peer_that_goes_on_is_admitted(start: PeerStart) -> None:
    starts_of(PeerStart(3, 100), start)


@pytest.mark.parametrize("start", [PeerStart(2, 100), PeerStart(2, 900), PeerStart(3, 99), PeerStart(9, 99)])
def test_an_older_self_is_refused(start: PeerStart) -> None:
    reason = starts_of(PeerStart(3, 100)).admit(StartClaim(2, start))
    assert reason is not None
    for number in (2, *start, 3, 100):
        assert str(number) in reason


def test_a_refused_start_changes_nothing() -> None:
    starts = starts_of(PeerStart(3, 100))
    assert starts.admit(StartClaim(2, PeerStart(9, 99))) is not None
    assert starts.admit(StartClaim(2, PeerStart(3, 100))) is None


def test_the_newest_start_is_what_counts() -> None:
    assert starts_of(PeerStart(3, 100), PeerStart(4, 200)).admit(StartClaim(2, PeerStart(4, 150))) is not None


def test_a_delayed_handshake_of_the_same_process_is_admitted() -> None:
    starts = PeerStarts()
    assert starts.admit(StartClaim(2, PeerStart(3, 100), b"process")) is None
    assert starts.admit(StartClaim(2, PeerStart(3, 150))) is None
    assert starts.admit(StartClaim(2, PeerStart(3, 120), b"process")) is None
    assert starts.newest(2) == PeerStart(3, 150)
    for process in (b"a copy", b""):
        assert starts.admit(StartClaim(2, PeerStart(3, 120), process)) is not None


def test_the_process_of_an_earlier_start_is_an_older_self() -> None:
    starts = PeerStarts()
    assert starts.admit(StartClaim(2, PeerStart(3, 100), b"before")) is None
    assert starts.admit(StartClaim(2, PeerStart(4, 100), b"after")) is None
    assert starts.admit(StartClaim(2, PeerStart(3, 100), b"before")) is not None


def test_a_new_start_has_to_have_found_what_peers_know() -> None:
    """Its own flushes do not make up for lost ones."""
    for found, is_admitted in ((99, False), (100, True), (102, True)):
        reason = starts_of(PeerStart(3, 100)).admit(StartClaim(2, PeerStart(4, 103), found=found))
        assert (reason is None) == is_admitted, found


def test_a_known_start_may_have_written_since() -> None:
    starts = PeerStarts()
    starts.restore(starts_of(PeerStart(3, 150)).snapshot())
    assert starts.admit(StartClaim(2, PeerStart(3, 160), b"process", found=100)) is None
    assert starts.newest(2) == PeerStart(3, 160)


def test_starts_survive_a_snapshot() -> None:
    starts = starts_of(PeerStart(3, 100))
    starts.admit(StartClaim(7, PeerStart(1, 2**40)))
    restored = starts_of(PeerStart(9, 900))
    restored.restore(starts.snapshot())
    assert [restored.newest(node_id) for node_id in (2, 3, 7)] == [
        PeerStart(3, 100),
        None,
        PeerStart(1, 2**40),
    ]
    assert restored.snapshot() == starts.snapshot()
    restored.restore(b"")
    assert (restored.newest(2), restored.snapshot()) == (None, b"")


def test_a_forgotten_peer_is_dropped() -> None:
    starts = starts_of(PeerStart(3, 100))
    for _ in range(2):
        starts.forget(2)
    assert starts.newest(2) is None


def test_each_peer_has_its_own_starts() -> None:
    assert starts_of(PeerStart(3, 100)).admit(StartClaim(3, PeerStart(1, 1))) is None


def test_later_flushes_of_the_newest_start_are_noted() -> None:
    starts = starts_of(PeerStart(3, 100))
    assert [starts.advance(2, 3, number) for number in (101, 101, 100)] == [True, False, False]
    assert not starts.advance(2, 2, 900)
    assert not starts.advance(2, 4, 900)
    assert not starts.advance(3, 3, 900)
    assert starts.newest(2) == PeerStart(3, 101)


@pytest.mark.parametrize(
    ("node_id", "start"),
    [
        (2, PeerStart(2**32, 1)),
        (2, PeerStart(2**64 - 1, 1)),
        (2, PeerStart(3 + INCARNATION_JUMP_MAX + 1, 100)),
        (2, PeerStart(3, 2**64 - 1)),
        (2, PeerStart(3, 101 + 2**44)),
        (2, PeerStart(-1, 100)),
        (9, PeerStart(INCARNATION_JUMP_MAX + 1, 1)),
        (9, PeerStart(1, 2**62)),
        (2**31, PeerStart(1, 1)),
        (0, PeerStart(1, 1)),
    ],
    ids=str,
)
def test_a_start_that_no_node_has_is_refused_and_not_kept(node_id: int, start: PeerStart) -> None:
    for process in (b"", b"process"):
        starts = PeerStarts()
        assert starts.admit(StartClaim(2, PeerStart(3, 100), b"process")) is None
        before = starts.snapshot()
        reason = starts.admit(StartClaim(node_id, start, process))
        assert reason is not None
        assert str(start.incarnation) in reason
        assert not starts.advance(node_id, *start)
        assert starts.snapshot() == before


def test_a_node_with_many_starts_is_admitted_by_what_metadata_knows() -> None:
    many = PeerStart(2**31, 1)
    assert PeerStarts().admit(StartClaim(2, many)) is not None
    assert PeerStarts().admit(StartClaim(2, many, registered=2**31 - 1)) is None
