"""Sessions: silence, leaderships, and pauses of the node itself."""

import pytest

from pixy.cluster.consumer_groups.group_sessions import BEAT_S, LEASE_S, LEAVING_S, SESSION_S, Sessions

GROUP = 2


def led(term: int = 1) -> Sessions:
    sessions = Sessions()
    assert sessions.lead(GROUP, term)
    return sessions


def pass_time(sessions: Sessions, seconds: float, heard_at: dict[int, float | None]) -> None:
    for _ in range(round(seconds * 10)):
        sessions.tick(0.1, heard_at)


def test_a_lease_ends_before_the_session_of_a_silent_node() -> None:
    assert LEASE_S + BEAT_S <= SESSION_S


@pytest.mark.parametrize("heard", [5.0, None])
def test_a_silent_node_expires_after_a_session(heard: float | None) -> None:
    sessions = led()
    pass_time(sessions, 2.9, {7: heard})
    assert not sessions.has_expired(GROUP, 7)
    pass_time(sessions, 0.2, {7: heard})
    assert sessions.has_expired(GROUP, 7)


def test_a_node_that_is_heard_of_has_a_new_session() -> None:
    sessions = led()
    for beat in range(20):
        pass_time(sessions, 1, {7: float(beat)})
        assert not sessions.has_expired(GROUP, 7)
    pass_time(sessions, 2.2, {7: 19.0})
    assert sessions.has_expired(GROUP, 7)


def test_silence_counts_from_the_beginning_of_a_leadership() -> None:
    sessions = led()
    pass_time(sessions, 10, {7: 0.0})
    sessions.lead(GROUP, None)
    pass_time(sessions, 10, {7: 0.0})
    assert not sessions.has_expired(GROUP, 7)
    assert sessions.lead(GROUP, 4)
    assert not sessions.lead(GROUP, 4)
    pass_time(sessions, 2.9, {7: 0.0})
    assert not sessions.has_expired(GROUP, 7)
    assert sessions.lead(GROUP, 6), "another one was in between"
    pass_time(sessions, 2.9, {7: 0.0})
    assert not sessions.has_expired(GROUP, 7)
    pass_time(sessions, 0.2, {7: 0.0})
    assert sessions.has_expired(GROUP, 7)


def test_a_pause_of_the_node_itself_is_no_silence_of_others() -> None:
    sessions = led()
    pass_time(sessions, 1, {7: 0.0})
    sessions.tick(60.0, {7: 0.0})
    assert not sessions.has_expired(GROUP, 7)


def test_a_node_that_is_not_known_counts_from_the_leadership_too() -> None:
    sessions = led()
    assert not sessions.has_expired(GROUP, 7)
    pass_time(sessions, 3.1, {})
    assert sessions.has_expired(GROUP, 7)
    assert not sessions.has_expired(GROUP + 1, 7)


def test_a_node_that_is_listed_no_more_has_its_session_to_the_end() -> None:
    sessions = led()
    pass_time(sessions, 5, {7: 1.0})
    sessions.tick(0.1, {7: 2.0})
    pass_time(sessions, 2.9, {})
    assert not sessions.has_expired(GROUP, 7)
    pass_time(sessions, 0.2, {})
    assert sessions.has_expired(GROUP, 7)


def test_a_removed_node_is_late_when_it_has_left_no_group_for_a_while() -> None:
    sessions = led()
    for groups in range(20, 10, -1):
        assert not sessions.leaves_late(GROUP, 7, groups)
        pass_time(sessions, LEAVING_S - 0.2, {})
        assert not sessions.leaves_late(GROUP, 7, groups)
    pass_time(sessions, 0.4, {})
    assert not sessions.leaves_late(GROUP, 8, 11)
    assert not sessions.leaves_late(GROUP + 1, 7, 11)
    assert sessions.leaves_late(GROUP, 7, 11)
    assert sessions.leaves_late(GROUP, 7, 9), "also while it is put out of one after the other"


def test_the_time_of_a_removed_node_begins_with_the_leadership() -> None:
    sessions = led()
    sessions.leaves_late(GROUP, 7, 11)
    pass_time(sessions, LEAVING_S + 0.1, {})
    sessions.lead(GROUP, 2)
    assert not sessions.leaves_late(GROUP, 7, 11)
