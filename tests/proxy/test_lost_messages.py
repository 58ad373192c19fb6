"""pixy/proxy/lost_messages.py: lines in the log for asynchronous messages that were not written."""

from typing import Any

import structlog

from pixy.errors import MessageTooLarge, Unavailable
from pixy.proxy.lost_messages import LostMessages
from tests.fakes.waiting import until


def told(logs: list[Any]) -> list[tuple[str, int, int, str]]:
    return [(line["topic"], line["messages"], line["total"], line["reason"]) for line in logs]


async def test_each_topic_has_one_line_with_its_number_and_the_last_reason() -> None:
    lost = LostMessages()
    with structlog.testing.capture_logs() as logs:
        lost.add("a", 2, Unavailable("no leader"))
        lost.add("b", 1, MessageTooLarge("too large"))
        lost.add("a", 3, Unavailable("no broker"))
        assert not logs
        lost.report()
        lost.report()
    assert told(logs) == [("a", 5, 6, "no broker"), ("b", 1, 6, "too large")]
    assert lost.total == 6


async def test_the_log_has_them_when_the_interval_ends() -> None:
    """Also if nothing is lost after them."""
    lost = LostMessages(interval_s=0.01)
    with structlog.testing.capture_logs() as logs:
        for round in range(2):
            lost.add("a", 1 + round, Unavailable("no leader"))
            lost.add("a", 1, Unavailable("no leader"))
            await until(lambda: logs)
            assert told(logs) == [("a", 2 + round, 2 + 3 * round, "no leader")]
            logs.clear()


async def test_an_interval_has_a_bounded_number_of_lines_and_none_is_left_out() -> None:
    lost = LostMessages()
    for number in range(1000):
        lost.add(f"topic-{number}", 1, Unavailable("no leader"))
    with structlog.testing.capture_logs() as logs:
        lost.report()
    assert len(logs) == 101
    assert sum(line["messages"] for line in logs) == 1000
    assert told(logs)[-1] == ("(others)", 900, 1000, "no leader")
