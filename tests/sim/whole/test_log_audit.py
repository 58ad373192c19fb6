"""The audit of a partition finds every anomaly, and passes what is allowed."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim.kit.failure import ClusterFailure
from tests.sim.whole.log_audit import LogAudit, Record, Send, SentValues


def send(audit: LogAudit, *values: bytes, begin: int = 1, process: str = "p") -> Send:
    send = Send(values, begin, process)
    audit.sent.add(send)
    return send


def records(*values: bytes, begin: int = 0) -> list[Record]:
    return [Record(offset, value, 100 * offset) for offset, value in enumerate(values, begin)]


def result(next_offset: int, *, begin: int = 0, end: int | None = None) -> Any:
    return SimpleNamespace(
        next_offset=next_offset,
        log_begin_offset=begin,
        high_watermark=next_offset if end is None else end,
    )


def written(*values: bytes) -> LogAudit:
    """A log in which each value was sent and answered behind the one before."""
    audit = LogAudit("log", SentValues())
    for offset, value in enumerate(values):
        audit.answered(send(audit, value, begin=10 * offset + 1), offset, 10 * offset + 5)
    return audit


def test_a_log_that_everybody_sees_alike_passes() -> None:
    audit = written(b"a", b"b", b"c")
    audit.fetched(0, records(b"a", b"b"), result(2, end=3), 41)
    audit.fetched(2, records(b"c", begin=2), result(3), 43)
    audit.ranged(0, 3, 44, 45)
    audit.replica("node 1", 0, records(b"a", b"b", b"c"))
    audit.replica("node 2", 1, records(b"b", b"c", begin=1))
    audit.searched(150, 2, 44, records(b"a", b"b", b"c"))
    audit.searched(500, None, 44, records(b"a", b"b", b"c"))


def test_what_was_sent_at_the_same_time_may_have_any_order() -> None:
    audit = LogAudit("log", SentValues())
    one, other = send(audit, b"a", begin=1), send(audit, b"b", begin=2, process="q")
    audit.answered(one, 1, 3)
    audit.answered(other, 0, 4)


def test_a_send_without_an_answer_may_be_in_the_log_or_not() -> None:
    audit = written(b"a")
    send(audit, b"lost", begin=20)
    send(audit, b"there", begin=21)
    audit.replica("node 1", 0, records(b"a", b"there"))


def test_a_search_may_miss_what_was_written_while_it_ran() -> None:
    audit = written(b"a", b"b")
    audit.searched(100, None, 3, records(b"a", b"b"))
    with pytest.raises(ClusterFailure, match="None was found for 100, and 1 is of 100"):
        audit.searched(100, None, 40, records(b"a", b"b"))


def inconsistent(audit: LogAudit) -> None:
    send(audit, b"x", begin=30)
    audit.fetched(1, records(b"x", begin=1), result(2), 41)


def reused(audit: LogAudit) -> None:
    audit.answered(send(audit, b"x", begin=2, process="q"), 1, 40)


def duplicate(audit: LogAudit) -> None:
    audit.fetched(2, records(b"b", begin=2), result(3), 41)


def phantom(audit: LogAudit) -> None:
    audit.fetched(2, records(b"x", begin=2), result(3), 41)


def refused_and_there(audit: LogAudit) -> None:
    audit.failed(send(audit, b"x", begin=30))
    audit.sent.failed.add(b"x")
    audit.fetched(2, records(b"x", begin=2), result(3), 41)


def there_and_refused(audit: LogAudit) -> None:
    sent = send(audit, b"x", begin=30)
    audit.fetched(2, records(b"x", begin=2), result(3), 41)
    audit.failed(sent)


def lost_in_a_replica(audit: LogAudit) -> None:
    audit.replica("node 1", 0, records(b"a"))


def lost_behind_others(audit: LogAudit) -> None:
    send(audit, b"x", begin=2)
    audit.replica("node 1", 0, records(b"a", b"x"))


def passed_by(audit: LogAudit) -> None:
    audit.fetched(0, records(b"b", begin=1), result(2), 41)


def reordered(audit: LogAudit) -> None:
    audit.answered(send(audit, b"x", begin=30, process="q"), 1, 40)


def reordered_in_a_process(audit: LogAudit) -> None:
    one, other = send(audit, b"x", begin=30), send(audit, b"y", begin=31)
    audit.answered(one, 3, 32)
    audit.answered(other, 2, 33)


def torn_batch(audit: LogAudit) -> None:
    send(audit, b"x", b"y", begin=30)
    audit.replica("node 1", 0, records(b"a", b"b", b"x"))


def stale(audit: LogAudit) -> None:
    audit.ranged(0, 1, 40, 41)


def beyond_the_end(audit: LogAudit) -> None:
    audit.refused(2, SimpleNamespace(begin=0, end=1), 40)


def next_offset(audit: LogAudit) -> None:
    audit.fetched(0, records(b"a"), result(2), 41)


def published_and_lost(audit: LogAudit) -> None:
    send(audit, b"x", b"y", begin=20)
    audit.published((b"x", b"y"))
    audit.replica("node 1", 0, records(b"a", b"b"))


ANOMALIES: dict[Callable[[LogAudit], None], str] = {
    inconsistent: "inconsistent offset 1: b'x' (fetched from 1), and b'b' elsewhere",
    reused: "inconsistent offset 1: b'x' (answered), and b'b' elsewhere",
    duplicate: "duplicate: b'b' at 1 and 2",
    phantom: "phantom: b'x' at 2",
    refused_and_there: "b'x' was refused, and is at 2",
    there_and_refused: "b'x' was refused, and is in the log",
    lost_in_a_replica: "lost write: node 1 ends at 1, 2 was shown",
    lost_behind_others: "inconsistent offset 1",
    passed_by: "lost write: a fetch from 0 passes by 0 to 1",
    reordered: "reordered: (b'x',) at 1, and the end was 2 before they were sent",
    reordered_in_a_process: "reordered: (b'y',) at 2, an earlier batch of the same process at 3",
    torn_batch: "node 1 has b'x', and not all of (b'x', b'y')",
    stale: "stale: the end is said to be 1, and was 2 before the call began",
    beyond_the_end: "beyond the end: 2 is refused",
    published_and_lost: "lost write: node 1 lacks [b'x', b'y']",
    next_offset: "a fetch of 0 to 1 goes on at 2",
}


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.__name__)
def test_an_anomaly_is_found(anomaly: Callable[[LogAudit], None]) -> None:
    with pytest.raises(ClusterFailure, match=re.escape(ANOMALIES[anomaly])):
        anomaly(written(b"a", b"b"))


def test_published_records_are_where_they_were_put_until_retention_takes_them() -> None:
    audit = written(b"a")
    send(audit, b"x", begin=20)
    audit.published((b"x",))
    audit.replica("node 1", 0, records(b"a", b"x"))
    audit.replica("node 2", 2, records(begin=2))


def test_an_offset_beyond_what_anybody_knew_may_be_refused() -> None:
    audit = written(b"a", b"b")
    audit.refused(3, SimpleNamespace(begin=0, end=2), 40)
    audit.refused(2, SimpleNamespace(begin=0, end=1), 12)
    audit.refused(0, SimpleNamespace(begin=1, end=2), 40)
