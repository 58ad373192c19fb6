"""Sessions: silence, leaderships, and pauses of the node itself."""

import pytest

from pixy.cluster.consumer_groups.group_sessions import BEAT_S, LEASE_S, SESSION_S, Sessions

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
