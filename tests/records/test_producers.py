"""The table of idempotent producers: verdicts, against a naive model too; its bytes."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.errors import (
    BatchesDivided,
    CorruptData,
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    TooManyProducers,
    Unavailable,
)
from pixy.records import producers
from pixy.records.producers import (
    ANY_FORGOTTEN,
    KEPT_BATCHES,
    ProducerBatch,
    ProducerTable,
    has_producer,
    producer_batch,
)
from tests.fakes.batches import batch_of, batch_of_producer

LAST = 2**31 - 1


class Log:
    """A log that a leader appends batches to, and applies them."""

    def __init__(self, table: ProducerTable | None = None) -> None:
        self.table = ProducerTable() if table is None else table
        self.end = 0

    def judge(self, first: int, records: int = 1, epoch: int = 0, producer_id: int = 7) -> Any:
        batch = ProducerBatch(self.end, records - 1, producer_id, epoch, first)
        found = self.table.judge([batch])
        if found is None:
            self.end += records
        return found

    def apply(self, first: int, records: int = 1, epoch: int = 0, producer_id: int = 7) -> None:
        """Take a batch that is committed, whoever has judged it."""
        self.table.apply(ProducerBatch(self.end, records - 1, producer_id, epoch, first), 1000)
        self.end += records

    def verdict(self, first: int, records: int = 1, epoch: int = 0, producer_id: int = 7) -> Any:
        """The verdict of a batch: "new" if it is taken, and then it is applied."""
        at = self.end
        found = self.judge(first, records, epoch, producer_id)
        if found is None:
            self.table.apply(ProducerBatch(at, records - 1, producer_id, epoch, first), 1000)
        return "new" if found is None else found if isinstance(found, int) else type(found)


def test_what_a_batch_says_of_its_producer() -> None:
    batch = batch_of_producer(2**40, 3, 70_000, b"a", b"b")
    assert producer_batch(batch) == ProducerBatch(0, 1, 2**40, 3, 70_000)
    assert has_producer(batch)
    assert not has_producer(batch_of(b"a"))


def test_batches_follow_each_other_without_a_gap() -> None:
    log = Log()
    assert [log.verdict(0, 3), log.verdict(3), log.verdict(4, 2)] == ["new"] * 3
    assert log.verdict(7) is OutOfOrderSequence
    assert log.verdict(5, 2) is OutOfOrderSequence  # partly written
    assert "sequences 7 to 9, expected is 6 as the first one" in str(log.judge(7, 3))
    assert log.verdict(6) == "new"


def test_each_of_the_last_five_batches_is_answered_with_its_offset() -> None:
    log = Log()
    for first in range(0, 12, 2):
        log.verdict(first, 2)
    assert [log.verdict(first, 2) for first in range(2, 12, 2)] == [2, 4, 6, 8, 10]
    assert log.verdict(0, 2) is DuplicateSequence
    assert log.verdict(2, 1) is OutOfOrderSequence  # a part of one
    assert log.end == 12


def test_a_batch_that_may_not_be_written_is_never_a_duplicate() -> None:
    log = Log(ProducerTable(ANY_FORGOTTEN))
    for first in range(17, 17 + KEPT_BATCHES):
        assert log.verdict(first) == "new"
    assert log.verdict(0, 17) is OutOfOrderSequence
    log = Log()
    for first in range(KEPT_BATCHES):
        log.verdict(first)
    assert log.verdict(LAST) is OutOfOrderSequence  # nobody has written so many records


def test_a_proposed_batch_is_known_before_it_is_applied() -> None:
    log = Log()
    assert log.judge(0, 2) is None
    assert log.judge(0, 2) == 0
    assert log.judge(2) is None
    assert log.judge(2) == 2
    log.table.lead()  # the leader has lost them
    assert isinstance(log.judge(2), OutOfOrderSequence)
    assert log.judge(0, 2) is None


def test_a_leader_knows_what_is_in_its_tail() -> None:
    log = Log()
    log.table.lead()
    log.table.follow(ProducerBatch(40, 1, 7, 0, 0))
    log.table.follow(ProducerBatch(42, 0, 7, 0, 2))
    assert log.judge(0, 2) == 40
    assert log.judge(2) == 42
    assert log.judge(3) is None


def test_batches_of_one_entry_are_judged_one_after_the_other() -> None:
    table = ProducerTable()
    first, second = ProducerBatch(0, 1, 7, 0, 0), ProducerBatch(2, 0, 7, 0, 2)
    assert table.judge([first, second], shared=True) is None
    again = table.judge([ProducerBatch(3, 0, 8, 0, 0), second._replace(base_offset=4)], shared=True)
    assert isinstance(again, BatchesDivided)
    assert table.judge([ProducerBatch(3, 0, 8, 0, 0)]) is None, "nothing of a divided entry counts"


@pytest.mark.parametrize("begin", [LAST - 1, LAST, LAST - 3])
def test_sequences_go_on_with_zero(begin: int) -> None:
    log = Log(ProducerTable(ANY_FORGOTTEN))
    assert log.verdict(begin, 3) == "new"
    behind = (begin + 3) % 2**31
    assert log.verdict(behind) == "new"
    assert (log.verdict(begin, 3), log.verdict(behind)) == (0, 3)
    assert log.verdict(behind + 2) is OutOfOrderSequence


def test_a_new_epoch_begins_with_zero_and_ends_the_one_before() -> None:
    log = Log()
    log.verdict(0), log.verdict(1)
    assert log.verdict(2, epoch=1) is OutOfOrderSequence
    assert log.verdict(0, epoch=1) == "new"
    assert log.verdict(1) is InvalidProducerEpoch, "written before, and nobody waits for it"
    assert log.verdict(2) is InvalidProducerEpoch
    assert log.verdict(0, epoch=1) == 2
    assert log.verdict(1, epoch=1) == "new"


def test_an_unknown_producer_begins_with_zero_unless_it_was_forgotten() -> None:
    log = Log()
    assert log.verdict(17, producer_id=8) is OutOfOrderSequence
    assert log.verdict(0, producer_id=7) == "new"
    log.table.forget([7], [0])
    assert len(log.table) == 0
    assert log.verdict(5, producer_id=7) == "new"
    assert log.verdict(17, producer_id=8) is OutOfOrderSequence
    assert log.verdict(0, producer_id=8) == "new"


def test_a_producer_that_has_written_meanwhile_is_not_forgotten() -> None:
    log = Log()
    log.verdict(0), log.verdict(1)
    log.table.forget([7, 9], [0, 3])
    assert log.verdict(1) == 1


def test_what_is_applied_twice_counts_once() -> None:
    log = Log()
    batches = [ProducerBatch(at, 0, 7, 0, at) for at in range(7)]
    for batch in [*batches, *batches[:4]]:
        log.table.apply(batch, 1000)
    log.end = 7
    assert [log.verdict(at) for at in range(2, 8)] == [2, 3, 4, 5, 6, "new"]


def test_an_older_epoch_that_is_applied_changes_nothing() -> None:
    log = Log()
    log.apply(0, epoch=2)
    log.apply(9, epoch=1)
    assert log.verdict(1, epoch=2) == "new"


def test_a_partition_knows_a_limited_number_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    log = Log()
    assert [log.judge(0, producer_id=each) for each in range(2)] == [None, None]
    assert log.verdict(0, producer_id=2) == "new"
    assert log.verdict(0, producer_id=3) is TooManyProducers
    assert log.judge(0, producer_id=3).limit
    assert log.verdict(1, producer_id=0) == "new", "it is one of them"
    log.table.forget([2], [2])
    assert log.verdict(0, producer_id=3) == "new"


def test_a_table_that_was_lost_takes_nothing() -> None:
    assert isinstance(Log(ProducerTable(is_known=False)).judge(0), Unavailable)


def test_those_that_have_written_nothing_since_a_time_are_idle() -> None:
    table = ProducerTable()
    for number, at_ms in enumerate((1000, 2000, 3000, -1)):
        table.apply(ProducerBatch(number, 0, number, 0, 0), at_ms)
    table.apply(ProducerBatch(4, 0, 0, 0, 1), 3000)
    assert table.idle(9000, 2500, 10) == [(1, 1)]
    assert table.idle(9000, 3500, 1) == [(1, 1)]
    assert table.idle(9000, 8999, 10) == [(1, 1), (2, 2)], "the next one is taken to have written now"
    assert table.idle(9500, 9001, 10) == [(1, 1), (2, 2), (3, 3), (0, 4)]


# --- bytes ----------------------------------------------------------------------------------------


def some_table() -> ProducerTable:
    log = Log()
    for first in range(7):
        log.verdict(first)
        log.verdict(first, producer_id=9)
    log.verdict(0, 3, epoch=4)
    log.verdict(0, producer_id=2)
    log.table.forget([2], [17])
    return log.table


def again(table: ProducerTable, end_offset: int = 100) -> ProducerTable:
    return ProducerTable.decoded(table.kept(end_offset).encoded())


def test_a_table_is_the_same_from_its_bytes() -> None:
    table = some_table()
    read = again(table)
    assert (read.end_offset, read.forgotten, len(read)) == (100, 2, 2)
    assert read.kept(1) == table.kept(1)
    assert list(read.kept(1).entries) == [9, 7], "the order of what they have written last"


def test_a_time_that_is_not_known_stays_so_in_bytes() -> None:
    table = ProducerTable()
    table.apply(ProducerBatch(0, 0, 7, 0, 0), -1)
    assert again(table).idle(5000, 4000, 9) == []


def test_what_is_kept_does_not_change_afterwards() -> None:
    table = some_table()
    kept = table.kept(5)
    before = kept.encoded()
    table.apply(ProducerBatch(90, 0, 7, 4, 3), 1000)
    assert kept.encoded() == before


def test_other_bytes_are_no_table() -> None:
    content = some_table().kept(100).encoded()
    for end in range(len(content)):
        with pytest.raises(CorruptData):
            ProducerTable.decoded(content[:end])
    for wrong in (content + b"\0", b"\xff" + content[1:], content[:28] + b"\xff" + content[29:]):
        with pytest.raises(CorruptData):
            ProducerTable.decoded(wrong)


# --- a model --------------------------------------------------------------------------------------


class Model:
    """One producer: everything that was ever written."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int, int, int]] = []  # epoch, first, records, offset
        self.end = 0

    def verdict(self, epoch: int, first: int, records: int) -> Any:
        newest = max((each[0] for each in self.written), default=-1)
        if epoch < newest:
            return InvalidProducerEpoch
        of_epoch = [each for each in self.written if each[0] == epoch]
        expected = sum(each[2] for each in of_epoch)
        for _, begin, count, offset in of_epoch[-5:]:
            if (begin, count) == (first, records):
                return offset
        if first == expected:
            self.written.append((epoch, first, records, self.end))
            self.end += records
            return "new"
        kept = of_epoch[-5:]
        if kept and first + records <= kept[0][1]:
            return DuplicateSequence
        return OutOfOrderSequence


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 3), st.booleans()), max_size=30
)


@given(STEPS)
def test_verdicts_are_those_of_a_model_that_forgets_nothing(
    steps: Iterable[tuple[int, int, int, bool]],
) -> None:
    log, model = Log(), Model()
    for epoch, first, records, stores in steps:
        assert log.verdict(first, records, epoch) == model.verdict(epoch, first, records)
        if stores:
            log.table = again(log.table)
