"""The window against a plain list, and a follower's progress under any sequence of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.raft.progress import Inflights, Progress, ProgressState

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "free", "reset"]), st.integers(1, 30), st.integers(0, 50)), max_size=40
)


@pytest.mark.slow
@given(OPERATIONS, st.integers(1, 5), st.sampled_from([0, 60]))
def test_the_window_has_the_messages_added_and_not_released(
    operations: list[tuple[str, int, int]], count: int, limit: int
) -> None:
    window, model, last = Inflights(count, limit), list[tuple[int, int]](), 0
    for what, step, size in operations:
        full = len(model) >= count or 0 < limit <= sum(size for _, size in model)
        assert window.full() == full
        assert window.count == len(model)
        if what == "add" and not full:
            last += step
            window.add(last, size)
            model.append((last, size))
        elif what == "free":
            window.free_to(last - step)
            model = [(index, size) for index, size in model if index > last - step]
        elif what == "reset":
            window.reset()
            model = []


def test_a_stale_acknowledgement_moves_no_probe() -> None:
    """It would have the leader send from the begin of its log, and hence a snapshot."""
    progress = Progress(11, Inflights(1))
    assert not progress.is_confirmed(0)
    progress.maybe_update(10)
    assert progress.is_confirmed(10)
    assert not progress.is_confirmed(9)
    progress.become_replicate()
    assert not progress.is_confirmed(10)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "acked", "rejected", "snapshot", "delivered", "unreachable"]),
        st.integers(0, 12),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(EVENTS)
def test_match_never_goes_back_and_stays_below_next(events: list[tuple[str, int]]) -> None:
    pr = Progress(1, Inflights(3, 0))
    for what, number in events:
        match = pr.match
        if what == "sent" and not pr.is_paused():
            pr.sent_entries(0 if pr.inflights.full() else number % 3, 10)
        elif what == "acked" and pr.maybe_update(pr.match + number):
            if pr.state is ProgressState.REPLICATE:
                pr.inflights.free_to(pr.match)
            else:
                pr.become_probe()
                pr.become_replicate()
        elif what == "rejected":
            if pr.maybe_decrease(pr.next - 1, number) and pr.state is ProgressState.REPLICATE:
                pr.become_probe()
        elif what == "snapshot":
            pr.become_snapshot(pr.match + number)
        elif what == "delivered":
            if pr.state is ProgressState.SNAPSHOT:
                pr.become_probe()
        elif what == "unreachable" and pr.state is ProgressState.REPLICATE:
            pr.become_probe()
        assert match <= pr.match < pr.next
        assert pr.inflights.count == 0 or pr.state is ProgressState.REPLICATE


def test_a_probe_is_a_single_message_until_a_response_arrives() -> None:
    pr = Progress(5, Inflights(3))
    assert not pr.is_paused()
    pr.sent_entries(2, 10)
    assert (pr.is_paused(), pr.next) == (True, 5)
    assert pr.maybe_update(6)
    assert (pr.is_paused(), pr.next) == (False, 7)


def test_a_full_window_permits_one_empty_append_after_a_heartbeat() -> None:
    pr = Progress(1, Inflights(1))
    pr.become_replicate()
    pr.sent_entries(1, 10)
    assert pr.is_paused()
    pr.paused = False
    pr.sent_entries(0, 0)
    assert pr.is_paused()


def test_the_byte_limit_is_soft() -> None:
    window = Inflights(9, 100)
    window.add(1, 99)
    assert not window.full()
    window.add(2, 1000)
    assert window.full()


def test_a_stale_rejection_changes_nothing() -> None:
    pr = Progress(5, Inflights(3), match=3)
    assert not pr.maybe_decrease(2, 1)
    pr.become_replicate()
    assert not pr.maybe_decrease(3, 1)
    assert (pr.match, pr.next) == (3, 4)


def test_only_an_acknowledgement_of_what_was_sent_answers_a_probe() -> None:
    pr = Progress(8, Inflights(3), match=3)
    assert [index for index in range(10) if pr.is_confirmed(index)] == [], "the probe is behind entry 7"
    pr.match = 7
    assert [index for index in range(10) if pr.is_confirmed(index)] == [7]


def test_only_an_acknowledgement_of_a_snapshot_or_more_answers_it() -> None:
    pr = Progress(4, Inflights(3), match=3)
    pr.become_snapshot(7)
    assert [index for index in range(10) if pr.is_confirmed(index)] == []
    pr.match = 8
    assert [index for index in range(10) if pr.is_confirmed(index)] == [8]


def test_nothing_is_left_to_confirm_while_entries_are_sent() -> None:
    pr = Progress(4, Inflights(3), match=3)
    pr.become_replicate()
    assert not any(pr.is_confirmed(index) for index in range(10))


def test_a_commit_index_is_worth_a_message_once_and_only_up_to_what_was_sent() -> None:
    pr = Progress(4, Inflights(3), match=3)
    assert [index for index in range(6) if pr.can_bump_commit(index)] == [1, 2, 3, 4, 5]
    pr.sent_commit = 2
    assert [index for index in range(6) if pr.can_bump_commit(index)] == [3, 4, 5]
    pr.sent_commit = 3
    assert [index for index in range(6) if pr.can_bump_commit(index)] == [], "the follower has no more"


def test_the_text_names_everything_unusual() -> None:
    pr = Progress(5, Inflights(1), learner=True)
    assert str(pr) == "StateProbe match=0 next=5 learner inactive"
    pr.become_replicate()
    pr.sent_entries(1, 1)
    assert str(pr) == "StateReplicate match=0 next=2 learner paused inactive inflight=1[full]"
    pr.become_snapshot(7)
    assert str(pr) == "StateSnapshot match=0 next=8 learner paused pendingSnap=7 inactive"
