"""Rows tell every repetition of a proposal from a new one, also after a restart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.entry_ids import ProposalId
from pixy.errors import OffsetOutOfRange, PixyError, TopicExists
from pixy.multiraft.dedup_table import WINDOW, DedupTable, DedupVerdict
from pixy.proto.state_pb2 import ProposerRow


def id_of(sequence: int, incarnation: int = 1, node_id: int = 1) -> ProposalId:
    return ProposalId(node_id, incarnation, sequence)


def restored(rows: DedupTable) -> DedupTable:
    """The rows as a start finds them."""
    return DedupTable([ProposerRow.FromString(row.SerializeToString()) for row in rows.snapshot().encoded()])


def test_a_proposal_is_new_until_it_is_applied() -> None:
    rows = DedupTable()
    assert rows.judge(id_of(1)) is DedupVerdict.NEW
    rows.record(id_of(1), 70)
    assert rows.judge(id_of(1)) == 70
    assert rows.judge(id_of(2)) is DedupVerdict.NEW


def test_a_repetition_gets_the_first_result_also_at_offset_0() -> None:
    rows = DedupTable()
    rows.record(id_of(1), 0)
    rows.record(id_of(2), None)
    assert (rows.judge(id_of(1)), rows.judge(id_of(2))) == (0, 0)


def test_a_repetition_of_a_refused_command_gets_its_error() -> None:
    rows = DedupTable()
    rows.record(id_of(1), TopicExists("topic a: exists already"))
    rows.record(id_of(2), 5)
    for each in (rows, restored(rows)):
        error = each.judge(id_of(1))
        assert isinstance(error, TopicExists)
        assert str(error) == "topic a: exists already"
        assert each.judge(id_of(2)) == 5


def test_an_error_is_forgotten_with_its_sequence() -> None:
    rows = DedupTable()
    rows.record(id_of(1), TopicExists("there"))
    rows.record(id_of(1 + WINDOW), 9)
    [row] = rows.snapshot().encoded()
    assert (list(row.sequences), list(row.values), list(row.errors)) == ([9], [9], [])


def test_an_unknown_error_of_a_newer_release_is_still_an_error() -> None:
    message = ProposerRow(node_id=1, incarnation=1, sequences=[1], values=[0], errors=["NewKind:reason"])
    error = DedupTable([message]).judge(id_of(1))
    assert type(error) is PixyError
    assert str(error) == "reason"


def test_an_error_with_arguments_of_its_own_is_still_an_error() -> None:
    rows = DedupTable()
    rows.record(id_of(1), OffsetOutOfRange("beyond", 1, 2))
    assert isinstance(restored(rows).judge(id_of(1)), PixyError)


def test_gaps_are_allowed_and_what_lies_in_them_is_new() -> None:
    rows = DedupTable()
    rows.record(id_of(2), 20)
    rows.record(id_of(6), 60)
    assert [rows.judge(id_of(sequence)) for sequence in range(1, 8)] == [
        DedupVerdict.NEW,
        20,
        DedupVerdict.NEW,
        DedupVerdict.NEW,
        DedupVerdict.NEW,
        60,
        DedupVerdict.NEW,
    ]


def test_sequences_below_the_window_are_outdated() -> None:
    rows = DedupTable()
    rows.record(id_of(20), 1)
    assert rows.judge(id_of(20 - WINDOW)) is DedupVerdict.OUTDATED
    assert rows.judge(id_of(21 - WINDOW)) is DedupVerdict.NEW


def test_a_higher_incarnation_replaces_the_row_and_a_lower_one_is_outdated() -> None:
    rows = DedupTable()
    rows.record(id_of(5, incarnation=1), 50)
    assert rows.judge(id_of(5, incarnation=2)) is DedupVerdict.NEW
    rows.record(id_of(1, incarnation=2), 60)
    assert rows.judge(id_of(5, incarnation=2)) is DedupVerdict.NEW
    assert rows.judge(id_of(5, incarnation=1)) is DedupVerdict.OUTDATED


def test_each_node_has_a_row() -> None:
    rows = DedupTable()
    rows.record(id_of(1, node_id=1), 10)
    rows.record(id_of(1, node_id=2), 20)
    assert (rows.judge(id_of(1, node_id=1)), rows.judge(id_of(1, node_id=2))) == (10, 20)


def test_a_snapshot_does_not_change_with_the_rows() -> None:
    rows = DedupTable()
    rows.record(id_of(1), 10)
    before = rows.snapshot()
    rows.record(id_of(2), 20)
    rows.record(id_of(3), TopicExists("there"))
    [row] = before.encoded()
    assert list(row.sequences) == [1]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(-WINDOW + 1, WINDOW - 1), st.integers(0, 2**40), st.booleans()
        ),
        max_size=80,
    )
)
def test_rows_agree_with_a_memory_of_everything(steps: list[tuple[int, int, int, bool]]) -> None:
    """Three nodes propose new sequences, and older ones that are within the window."""
    rows = DedupTable()
    known: dict[int, dict[int, int]] = {}
    for node_id, step, value, restart in steps:
        applied = known.setdefault(node_id, {})
        last = max(applied, default=0)
        sequence = max(1, last + step)
        proposal = id_of(sequence, node_id=node_id)
        expected = applied.get(sequence, DedupVerdict.NEW)
        assert rows.judge(proposal) == expected
        if expected is DedupVerdict.NEW:
            rows.record(proposal, value)
            applied[sequence] = value
        if restart:
            rows = restored(rows)
