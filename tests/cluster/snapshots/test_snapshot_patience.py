"""Followers that were sent a snapshot, and say nothing for too long."""

from pixy.cluster.snapshots.snapshot_patience import SnapshotPatience

GROUP, OTHER = 1, 2


def overdue(patience: SnapshotPatience, waiting: dict[int, int], now: float) -> list[tuple[int, bool]]:
    return list(patience.overdue(GROUP, waiting, now, 10.0))


def test_a_follower_that_asks_for_nothing_is_lost() -> None:
    patience = SnapshotPatience()
    assert overdue(patience, {2: 100, 3: 100}, 5.0) == []
    assert overdue(patience, {2: 100, 3: 100}, 14.0) == []
    assert overdue(patience, {2: 100, 3: 100}, 15.0) == [(2, True), (3, True)]


def test_a_follower_that_asks_is_waited_for() -> None:
    patience = SnapshotPatience()
    for now in range(0, 100, 9):
        patience.heard(GROUP, 2, now, has_all=False)
        assert overdue(patience, {2: 100}, now + 8.0) == []
    assert overdue(patience, {2: 100}, 109.0) == [(2, True)]


def test_a_follower_that_was_sent_everything_did_not_fail() -> None:
    patience = SnapshotPatience()
    patience.heard(GROUP, 2, 3.0, has_all=True)
    assert overdue(patience, {2: 100}, 12.0) == []
    assert overdue(patience, {2: 100}, 13.0) == [(2, False)]


def test_a_follower_that_begins_anew_has_not_got_everything() -> None:
    patience = SnapshotPatience()
    patience.heard(GROUP, 2, 3.0, has_all=True)
    patience.heard(GROUP, 2, 4.0, has_all=False)
    assert overdue(patience, {2: 100}, 14.0) == [(2, True)]


def test_a_later_snapshot_is_waited_for_anew() -> None:
    patience = SnapshotPatience()
    patience.heard(GROUP, 2, 0.0, has_all=True)
    assert overdue(patience, {2: 100}, 5.0) == []
    assert overdue(patience, {2: 200}, 10.0) == []
    assert overdue(patience, {2: 200}, 19.0) == []
    assert overdue(patience, {2: 200}, 20.0) == [(2, True)]


def test_a_lost_follower_is_waited_for_again() -> None:
    patience = SnapshotPatience()
    overdue(patience, {2: 100}, 0.0)
    assert overdue(patience, {2: 100}, 10.0) == [(2, True)]
    assert overdue(patience, {2: 100}, 11.0) == []
    assert overdue(patience, {2: 100}, 21.0) == [(2, True)]


def test_a_follower_that_does_not_wait_any_more_is_forgotten() -> None:
    patience = SnapshotPatience()
    patience.heard(OTHER, 2, 0.0, has_all=False)
    patience.heard(GROUP, 2, 0.0, has_all=True)
    patience.heard(GROUP, 3, 0.0, has_all=False)
    assert overdue(patience, {3: 100}, 1.0) == []
    assert len(patience) == 2
    assert overdue(patience, {}, 2.0) == []
    assert len(patience) == 1
