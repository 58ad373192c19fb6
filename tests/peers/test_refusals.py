"""Log of refused connections."""

import pytest
from structlog.testing import capture_logs

from pixy.peers import NotYet
from pixy.peers.refusals import RefusalLog


def test_the_same_refusal_is_logged_once_a_minute() -> None:
    refusals = RefusalLog()
    with capture_logs() as logs:
        for now in range(0, 130, 2):
            refusals.note("node 2", "127.0.0.1:5", "wrong cluster", float(now), by_peer=False)
    assert [entry["event"] for entry in logs] == ["a peer is refused"] * 3
    assert logs[0]["reason"] == "wrong cluster"


def test_other_reasons_and_peers_are_logged() -> None:
    refusals = RefusalLog()
    assert refusals.note("node 2", "a", "wrong cluster", 0.0, by_peer=False)
    assert refusals.note("node 2", "a", "older self", 0.0, by_peer=True)
    assert refusals.note("node 3", "a", "older self", 0.0, by_peer=True)
    assert not refusals.note("node 3", "b", "older self", 0.0, by_peer=True)


def test_what_passes_by_itself_is_a_warning_once_it_lasts() -> None:
    refusals = RefusalLog()
    reason = NotYet("node 2 has not started yet")
    with capture_logs() as logs:
        for start in (0.0, 300.0):  # two starts of node 2
            for now in range(0, 130, 2):
                refusals.note("node 2", "127.0.0.1:5", reason, start + now, by_peer=False)
    assert [entry["log_level"] for entry in logs] == ["info", "warning", "warning"] * 2


@pytest.mark.slow
def test_the_log_remembers_a_bounded_number() -> None:
    refusals = RefusalLog()
    for number in range(1000):
        refusals.note(f"node {number}", "a", "x", 0.0, by_peer=False)
    assert len(refusals._noted) == 200
