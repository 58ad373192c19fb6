"""The crash test's own checks can fail: each kind of loss is detected."""

import pytest

from pixy.proto.kafkapixy_pb2 import PartitionOffset
from pixy.records import OffsetRange, TopicPartition
from tests.integration.ledger import Committed, GroupLedger, Ledger, MovedLedger, Position

KEY = TopicPartition("t", 0)
RECORDS = [(0, b"a"), (1, b"b"), (2, b"c")]


def at(offset: int) -> Position:
    return Position("t", 0, offset)


@pytest.fixture
def ledger() -> Ledger:
    """Three records, each sent once and answered."""
    ledger = Ledger()
    for offset, value in RECORDS:
        ledger.sent[value] += 1
        ledger.acknowledge(at(offset), value)
    return ledger


def test_a_log_with_all_answered_records_is_accepted(ledger: Ledger) -> None:
    ledger.sent[b"not answered"] += 1
    ledger.check_log(KEY, OffsetRange(0, 4), [*RECORDS, (3, b"not answered")])
    ledger.check_copies()
    ledger.check_present([b"a", b"not answered"])


@pytest.mark.parametrize(
    ("end", "records", "complaint"),
    [
        (2, RECORDS[:2], "ends at 2"),
        (3, [(0, b"a"), (2, b"c")], "missing 1 of 3: \\[1\\] to \\[1\\]"),
        (3, [*RECORDS, (2, b"c")], "doubled \\[2\\]"),
        (3, [(0, b"a"), (1, b"b"), (2, b"b")], "was b'c' and is b'b'"),
        (4, [*RECORDS, (3, b"x")], "which nobody sent"),
    ],
)
def test_a_log_with_a_lost_or_changed_record_is_rejected(
    ledger: Ledger, end: int, records: list[tuple[int, bytes]], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        ledger.check_log(KEY, OffsetRange(0, end), records)


def test_a_lost_async_message_a_copy_and_a_repeated_offset_are_detected(ledger: Ledger) -> None:
    ledger.check_log(KEY, OffsetRange(0, 4), [*RECORDS, (3, b"a")])
    with pytest.raises(AssertionError, match="sent 1 times and is there 2 times"):
        ledger.check_copies()
    with pytest.raises(AssertionError, match="1 messages are lost"):
        ledger.check_present([b"a", b"z"])
    with pytest.raises(AssertionError, match="two records"):
        ledger.acknowledge(at(1), b"b")


def test_results_of_get_offsets_are_read_with_their_sparse_acks() -> None:
    assert Committed.shown(PartitionOffset(offset=301, metadata="BDCCBD")) == Committed(
        301, frozenset({302, 303, 304, 307, 308, 310, 311, 312})
    )
    assert Committed.shown(PartitionOffset(offset=-1)) == Committed()


@pytest.fixture
def group() -> GroupLedger:
    """A group that has acked 0, 1 and 3, with the commit shown."""
    group = GroupLedger("g", workers=1)
    group.begin_life({KEY: Committed()})
    for offset in (0, 1, 2, 3):
        group.offer(at(offset))
    group.acked |= {at(0), at(1), at(3)}
    group.show(KEY, Committed(2, frozenset({3})))
    return group


def test_growing_commits_are_accepted(group: GroupLedger) -> None:
    group.end_life()
    group.acked.add(at(2))
    group.begin_life({KEY: Committed(4)})
    group.offer(at(4))
    group.end_life({KEY: 5})


@pytest.mark.parametrize(
    ("committed", "complaint"),
    [
        (Committed(1), "went back from 2 to 1"),
        (Committed(2), "has them no more"),
        (Committed(5), "committed without an ack"),
    ],
)
def test_a_commit_that_went_back_or_covers_too_much_is_detected(
    group: GroupLedger, committed: Committed, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        group.begin_life({KEY: committed})


def test_an_offer_of_a_committed_record_is_detected(group: GroupLedger) -> None:
    group.begin_life({KEY: Committed(2, frozenset({3}))})
    group.offer(at(2))
    for offset in (1, 3):
        with pytest.raises(AssertionError, match="was committed and is offered again"):
            group.offer(at(offset))
    with pytest.raises(AssertionError, match="twice in one life"):
        group.offer(at(2))


def test_a_record_that_is_not_redelivered_is_detected(group: GroupLedger) -> None:
    group.begin_life({KEY: Committed(2, frozenset({3}))})
    group.offer(at(4))
    group.end_life()  # the answer with 2 may have been lost: one request was in flight
    with pytest.raises(AssertionError, match="not acked and not offered again"):
        group.end_life({KEY: 5})
    group.offer(at(6))
    with pytest.raises(AssertionError, match="not acked and not offered again"):
        group.end_life()


def test_an_ack_may_be_lost_by_a_crash_but_not_by_a_clean_exit(group: GroupLedger) -> None:
    shown = {KEY: Committed(2, frozenset({3}))}
    group.confirmed.add(at(3))
    group.begin_life(shown, after_crash=False)
    group.confirmed.add(at(2))
    with pytest.raises(AssertionError, match="acked and not committed"):
        group.begin_life(shown, after_crash=False)
    group.begin_life(shown)


def test_auto_ack_may_lose_one_record_per_request_and_crash_and_no_more() -> None:
    group = GroupLedger("g", workers=1, auto_ack=True)
    group.begin_life({KEY: Committed(1)})
    group.begin_life({KEY: Committed(2)})
    with pytest.raises(AssertionError, match="committed without an ack"):
        group.begin_life({KEY: Committed(4)})


def test_partially_set_or_lost_offsets_are_detected() -> None:
    moved = MovedLedger()
    moved.begin_life("t", (-1, -1))
    moved.begin("t", (3, 4))
    moved.answer("t")
    moved.begin("t", (5, 6))
    for shown in ((3, 6), (-1, -1)):
        with pytest.raises(AssertionError, match="expected one of"):
            moved.begin_life("t", shown)
    moved.begin_life("t", (5, 6))
    with pytest.raises(AssertionError, match="expected one of"):
        moved.begin_life("t", (3, 4))
