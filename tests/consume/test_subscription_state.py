"""The states of a subscription, event by event."""

import pytest

from pixy.consume.subscription_state import SubscriptionEvent, SubscriptionState

S, E = SubscriptionState, SubscriptionEvent
LIVING = [state for state in S if state is not S.CLOSED]


def after(*events: SubscriptionEvent) -> SubscriptionState:
    state = S.OPEN
    for event in events:
        state = state.after(event)
    return state


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([E.TIMEOUT], S.IDLE),
        ([E.TIMEOUT, E.REQUEST], S.OPEN),
        ([E.PAUSE, E.SEAL, E.REOPEN], S.IDLE),
        ([E.PAUSE, E.SEAL, E.PAUSE], S.SEALED),
        ([E.SEAL], S.SEALED),
        ([E.REOPEN], S.OPEN),
        ([E.DRAIN, E.PAUSE, E.SEAL, E.REOPEN], S.DRAINING),
        ([E.PAUSE, E.DRAIN, E.SEAL], S.DRAINING_SEALED),
        ([E.DRAIN, E.CLOSE], S.CLOSED),
    ],
)
def test_events_lead_to_states(events: list[SubscriptionEvent], expected: SubscriptionState) -> None:
    assert after(*events) is expected


@pytest.mark.parametrize("state", LIVING)
def test_every_state_has_every_event_but_a_timeout_during_a_rebalance_or_drain(
    state: SubscriptionState,
) -> None:
    for event in E:
        if event is E.TIMEOUT and state not in (S.OPEN, S.IDLE):
            with pytest.raises(AssertionError, match=f"TIMEOUT of a subscription that is {state.name}"):
                state.after(event)
        else:
            state.after(event)


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("event", [event for event in E if event is not E.TIMEOUT])
def test_a_drain_never_ends_but_by_the_close(state: SubscriptionState, event: SubscriptionEvent) -> None:
    if state.draining:
        assert state.after(event).draining or event is E.CLOSE
    assert state.after(E.SEAL).sealed
    assert state.after(E.PAUSE).rebalancing
    assert not state.after(E.REOPEN).rebalancing


def test_offers_are_watched_whenever_an_end_depends_on_them() -> None:
    assert [state for state in S if not state.watches_offers] == [S.OPEN, S.CLOSED]


def test_nothing_follows_the_close() -> None:
    assert S.CLOSED.after(E.CLOSE) is S.CLOSED
    with pytest.raises(AssertionError, match="REQUEST of a subscription that is CLOSED"):
        S.CLOSED.after(E.REQUEST)
