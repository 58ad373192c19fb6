"""Log lines about connections that have proven nothing."""

from structlog.testing import capture_logs

from pixy.peers.stranger_log import LINES_MAX, StrangerLog


def test_lines_of_a_minute_are_bounded_and_the_rest_is_counted() -> None:
    lines = StrangerLog()
    with capture_logs() as logs:
        for number in range(1000):
            lines.write("info", f"event {number}", number / 100)
        assert len(logs) == LINES_MAX
        lines.tick(59.0)
        assert len(logs) == LINES_MAX
        for now in (60.0, 61.0):
            lines.tick(now)
        assert len(logs) == LINES_MAX + 1
        assert logs[-1]["lines"] == 1000 - LINES_MAX
        assert lines.write("warning", "another minute", 62.0)
    assert logs[-1]["event"] == "another minute"


def test_lines_that_are_not_many_are_not_counted() -> None:
    lines = StrangerLog()
    with capture_logs() as logs:
        for now in range(0, 600, 10):
            assert lines.write("info", "event", float(now))
    assert len(logs) == 60
