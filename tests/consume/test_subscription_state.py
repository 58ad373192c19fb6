"""The states of a subscription, event by event."""

import pytest

from pixy.consume.core.subscription_state import SubscriptionEvent, SubscriptionState

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
        ([E.REQUEST], S.OPEN),
        ([E.TIMEOUT], S.IDLE),
        ([E.TIMEOUT, E.TIMEOUT], S.IDLE),
        ([E.TIMEOUT, E.REQUEST], S.OPEN),
        ([E.DRAIN], S.DRAINING),
        ([E.TIMEOUT, E.DRAIN, E.REQUEST], S.DRAINING),
        ([E.DRAIN, E.CLOSE], S.CLOSED),
    ],
)
def test_events_lead_to_states(events: list[SubscriptionEvent], expected: SubscriptionState) -> None:
    assert after(*events) is expected


@pytest.mark.parametrize("state", LIVING)
def test_every_state_has_every_event_but_a_timeout_during_a_drain(state: SubscriptionState) -> None:
    for event in E:
        if event is E.TIMEOUT and state is S.DRAINING:
            with pytest.raises(AssertionError, match="TIMEOUT of a subscription that is DRAINING"):
                state.after(event)
        else:
            state.after(event)


@pytest.mark.parametrize("event", [E.REQUEST, E.DRAIN])
def test_a_drain_never_ends_but_by_the_close(event: SubscriptionEvent) -> None:
    assert S.DRAINING.after(event) is S.DRAINING


def test_offers_are_watched_whenever_an_end_depends_on_them() -> None:
    assert [state for state in S if not state.watches_offers] == [S.OPEN, S.CLOSED]


def test_nothing_follows_the_close() -> None:
    assert S.CLOSED.after(E.CLOSE) is S.CLOSED
    with pytest.raises(AssertionError, match="REQUEST of a subscription that is CLOSED"):
        S.CLOSED.after(E.REQUEST)
