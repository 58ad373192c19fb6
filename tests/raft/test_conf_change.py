"""Sequences of membership changes: any two consecutive configurations have overlapping quorums."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.raft import (
    ConfChangeError,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
)
from pixy.raft.conf_change import Changer, restore
from pixy.raft.progress import Inflights, Progress

pytestmark = pytest.mark.slow

CHANGES = st.lists(
    st.builds(
        ConfChangeV2,
        st.lists(
            st.builds(ConfChangeSingle, st.sampled_from(ConfChangeType), st.integers(0, 5)), max_size=4
        ).map(tuple),
        st.sampled_from(ConfChangeTransition),
    ),
    max_size=25,
)


def new_progress(learner: bool) -> Progress:
    return Progress(1, Inflights(1), learner=learner)


def quorums(config: ConfState) -> list[set[int]]:
    """All sets of nodes that form a quorum of this configuration."""
    nodes = sorted({*config.voters, *config.voters_outgoing})
    halves = [set(half) for half in (config.voters, config.voters_outgoing) if half]
    sets = [set(some) for size in range(1, len(nodes) + 1) for some in combinations(nodes, size)]
    return [some for some in sets if all(len(some & half) * 2 > len(half) for half in halves)]


@given(CHANGES)
def test_consecutive_configurations_have_no_disjoint_quorums(changes: list[ConfChangeV2]) -> None:
    config, progress = ConfState(voters=(1, 2, 3)), {node_id: new_progress(False) for node_id in (1, 2, 3)}
    for change in changes:
        try:
            after, progress = Changer(config, progress, new_progress).change(change)
        except ConfChangeError:
            continue
        for one in quorums(config):
            assert all(one & other for other in quorums(after)), f"{config} -> {after}"
        named = {*after.voters, *after.voters_outgoing, *after.learners}
        assert set(progress) == named
        assert {node_id for node_id, pr in progress.items() if pr.learner} == set(after.learners)
        assert not set(after.learners) & {*after.voters, *after.voters_outgoing}
        assert set(after.learners_next) <= set(after.voters_outgoing) - set(after.voters)
        config = after


@given(CHANGES)
def test_an_invalid_change_has_no_effect(changes: list[ConfChangeV2]) -> None:
    config, progress = ConfState(voters=(1, 2), learners=(3,)), {i: new_progress(i == 3) for i in (1, 2, 3)}
    for change in changes:
        before = {node_id: str(pr) for node_id, pr in progress.items()}
        try:
            config, progress = Changer(config, progress, new_progress).change(change)
        except ConfChangeError:
            assert {node_id: str(pr) for node_id, pr in progress.items()} == before


@given(CHANGES)
def test_every_reachable_configuration_can_be_stored_and_restored(changes: list[ConfChangeV2]) -> None:
    config, progress = ConfState(voters=(1,)), {1: new_progress(False)}
    for change in changes:
        try:
            config, progress = Changer(config, progress, new_progress).change(change)
        except ConfChangeError:
            continue
        restored, restored_progress = restore(config, new_progress)
        assert restored == config
        assert {i: pr.learner for i, pr in restored_progress.items()} == {
            i: pr.learner for i, pr in progress.items()
        }


SINGLES = st.lists(
    st.builds(ConfChangeSingle, st.sampled_from(ConfChangeType), st.integers(1, 5)), max_size=4
)


@given(st.lists(SINGLES, max_size=10))
def test_simple_changes_affect_at_most_one_voter_or_have_no_effect(
    chain: list[list[ConfChangeSingle]],
) -> None:
    config, progress = ConfState(voters=(1, 2), learners=(3,)), {i: new_progress(i == 3) for i in (1, 2, 3)}
    for changes in chain:
        before = {node_id: str(pr) for node_id, pr in progress.items()}
        try:
            after, progress = Changer(config, progress, new_progress).simple(changes)
        except ConfChangeError:
            assert {node_id: str(pr) for node_id, pr in progress.items()} == before
            continue
        assert len(set(config.voters) ^ set(after.voters)) <= 1
        for one in quorums(config):
            assert all(one & other for other in quorums(after)), f"{config} -> {after}"
        config = after


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (ConfState(voters=(1,), learners=(1,)), r"1 is in Learners and Voters\[0\]"),
        (ConfState(voters=(1,), voters_outgoing=(2,), learners=(2,)), r"2 is in Learners and Voters\[1\]"),
        (ConfState(voters=(1,), voters_outgoing=(1,), learners_next=(3,)), "no progress for 3"),
        (ConfState(voters=(1, 2), learners_next=(2,)), r"2 is in LearnersNext, but not Voters\[1\]"),
        (ConfState(voters=(1,), auto_leave=True), "AutoLeave must be false when not joint"),
    ],
)
def test_an_unreachable_configuration_is_rejected(config: ConfState, text: str) -> None:
    with pytest.raises(ConfChangeError, match=text):
        restore(config, new_progress)
