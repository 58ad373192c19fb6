import asyncio
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from pixy.drain_report import report_drain
from tests.fakes.waiting import until

NOW = datetime(2026, 1, 31, 23, 59, 50, tzinfo=UTC)


@pytest.mark.parametrize(
    ("waits", "time", "named"),
    [
        (["1 ack of messages that are out"], "00:00:20", "1 ack of messages that are out"),
        (["2 acks", "3 messages to be written"], "00:00:20", "2 acks, 3 messages to be written"),
        ([], "00:00:25", "connections and files to close"),
    ],
)
async def test_a_drain_is_reported_with_its_limit_and_the_way_to_end_it(
    waits: list[str], time: str, named: str
) -> None:
    with capture_logs() as logged:
        report = asyncio.create_task(report_drain(lambda: waits, 30.0, 5.0, now=lambda: NOW, first_s=0))
        await until(lambda: bool(logged))
        report.cancel()
    assert [entry["event"] for entry in logged] == [
        f"waiting until {time}Z at the latest for {named}; a second SIGTERM or Ctrl-C ends it at once"
    ]
