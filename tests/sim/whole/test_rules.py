"""The simulation is not blind: with any one rule disabled it detects a violation, in a seed that is
fine otherwise.
"""

import pytest

from tests.sim.kit.rules import switched_off
from tests.sim.kit.seeds import failure_of
from tests.sim.sample import sample
from tests.sim.whole.rules import RULES
from tests.sim.whole.simulation import Simulation

OTHER_SEEDS = range(1, 25)
"""Tried if the recorded one is outdated."""
FOUND = {
    (
        "an answered ack waits for no news of the delivery of its record",
        124,
    ): "a wrong ack comes to the owner when it has just lent the record, and counts",
    (
        "a node that joins goes by the time before a jump",
        14,
    ): "the only node that knows that time tells it while no majority agrees, and loses its disk",
    (
        "a replica that is back does not vote before it knows the members",
        29,
    ): "a node writes past its own replica, which has batches in flight, and changes their order",
}
"""Seeds that have found something with the focus of a rule, and what it was."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", sample(RULES, 4))
def test_a_disabled_rule_is_detected(rule: str) -> None:
    focus = RULES[rule].focus
    for seed in (RULES[rule].seed, *OTHER_SEEDS):
        with switched_off(RULES[rule]):
            failure = failure_of(Simulation, seed, focus=focus)
        if failure is not None:
            assert failure_of(Simulation, seed, focus=focus) is None
            return
    pytest.fail(f"no seed notices that this rule does not hold: {rule}")


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "seed"), FOUND)
def test_a_seed_that_has_found_something_passes(rule: str, seed: int) -> None:
    assert failure_of(Simulation, seed, focus=RULES[rule].focus) is None
