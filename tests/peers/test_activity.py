"""Silence of connections and pauses of the process."""

from pixy.peers.activity import Activity, CheckResult, PauseDetector

NOTHING, ALIVE, SILENT = CheckResult.NOTHING, CheckResult.ALIVE, CheckResult.SILENT


def test_a_connection_is_silent_after_the_limit() -> None:
    activity = Activity(0.5, 2.0)
    activity.heard += 1
    results = [activity.check(0.25) for _ in range(9)]
    assert results[0] is not SILENT
    assert results.index(SILENT) == 8


def test_everything_that_is_heard_ends_a_silence() -> None:
    activity = Activity(0.5, 2.0)
    for _ in range(20):
        activity.heard += 1
        assert [activity.check(0.25) for _ in range(7)].count(SILENT) == 0


def test_an_idle_connection_sends_a_frame_at_each_interval() -> None:
    activity = Activity(0.5, 1e9)
    sent = [activity.check(0.25) is ALIVE for _ in range(9)]
    assert sent == [False, False, True, False, True, False, True, False, True]


def test_a_connection_that_sends_needs_no_frame() -> None:
    activity = Activity(0.5, 1e9)
    for _ in range(9):
        activity.sent = True
        assert activity.check(0.25) is NOTHING


def test_checks_in_time_count_what_has_passed() -> None:
    detector = PauseDetector(0.25, 100.0)
    assert detector.elapsed(100.25) == 0.25
    assert detector.elapsed(100.55) == 0.25 + (100.55 - 100.5)


def test_the_first_check_after_a_pause_decides_nothing() -> None:
    detector = PauseDetector(0.25, 100.0)
    assert detector.elapsed(130.0) is None
    assert detector.elapsed(130.25) == 0.25


def test_a_loop_that_is_always_late_decides_at_every_other_check() -> None:
    detector, now = PauseDetector(0.25, 100.0), 100.0
    found = []
    for _ in range(4):
        now += 1.0
        found.append(detector.elapsed(now))
    assert found == [None, 0.5, None, 0.5]


def test_a_pause_ends_no_connection_whose_inbox_is_full() -> None:
    """1.9 s of silence, a pause of half a minute, and then the bytes that came meanwhile."""
    activity, detector, now = Activity(0.5, 2.0), PauseDetector(0.25, 0.0), 0.0
    for _ in range(8):
        now += 0.25
        elapsed = detector.elapsed(now)
        assert elapsed is not None
        assert activity.check(elapsed) is not SILENT
    now += 30.0
    assert detector.elapsed(now) is None
    activity.heard += 1  # the loop has read before the next check
    now += 0.25
    elapsed = detector.elapsed(now)
    assert elapsed is not None
    assert activity.check(elapsed) is not SILENT
