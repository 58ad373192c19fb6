"""The table of a publication's states. A node with publications is covered by
tests/cluster/publications/test_publisher.py.
"""

import pytest

from pixy.cluster.publications.roll_forward import RollForwardEvent, RollForwardState, next_state

WAY = [
    (RollForwardState.PROPOSING, RollForwardEvent.ALL_PROPOSED),
    (RollForwardState.APPLYING, RollForwardEvent.ALL_APPLIED),
    (RollForwardState.VISIBLE, RollForwardEvent.ALL_DURABLE),
    (RollForwardState.REMOVING, RollForwardEvent.STAGES_REMOVED),
    (RollForwardState.FINISHING, RollForwardEvent.FORGOTTEN),
]


def test_a_publication_passes_every_state_once() -> None:
    state = RollForwardState.PROPOSING
    for expected, event in WAY:
        assert state is expected
        state = next_state(state, event)
    assert state is RollForwardState.GONE
    assert {each for each, _ in WAY} | {state} == set(RollForwardState)


@pytest.mark.parametrize("state", RollForwardState)
@pytest.mark.parametrize("event", RollForwardEvent)
def test_an_event_out_of_turn_is_a_bug(state: RollForwardState, event: RollForwardEvent) -> None:
    if (state, event) not in WAY:
        with pytest.raises(AssertionError, match=f"{event.name} of a publication that is {state.name}"):
            next_state(state, event)
