"""Shown offsets are never beyond the shown ends; without either of the two reasons for that, the
simulation notices.
"""

from unittest.mock import patch

import pytest

from pixy.cluster import Node
from pixy.proxy import PartitionOffsets, Proxy
from tests.sim.kit.rules import Rule, switched_off
from tests.sim.kit.seeds import failure_of
from tests.sim.whole import broken
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.focuses import CONSUMERS, PRODUCERS, aimed
from tests.sim.whole.network import Weather
from tests.sim.whole.simulation import Simulation
from tests.sim.whole.swarm import Swarm

_get_offsets = Proxy.get_offsets
BEYOND = "which ends at"
"""Of a failure."""


async def ends_first(self: Proxy, group: str, topic: str) -> list[PartitionOffsets]:
    """The ends are those of before the committed offsets were read."""
    ends = await self._backend.offset_ranges(topic)
    return [
        each._replace(end=ends[each.partition].end) if each.partition in ends else each
        for each in await _get_offsets(self, group, topic)
    ]


_CALM = PRODUCERS | {"clients": 3, "open_max": 1, "think_s": 0.1}
_SHOWING = CONSUMERS | {"clients": 8, "auto_acks": 1.0, "shows_s": 0.05}
_SLOW = Weather((0.02, 0.1))
RULES: dict[str, Rule[Swarm]] = {
    "the ends are of later than the committed offsets": Rule(
        [patch.object(Proxy, "get_offsets", ends_first)],
        aimed(FaultKind.PAUSE, habits=_CALM, consuming=_SHOWING, weather=_SLOW, duration_s=12.0),
        seed=6,
    ),
    "a node that may be behind shows no end": Rule(
        [patch.object(Node, "confirm_each", broken.none_is_late)],
        aimed(FaultKind.CRASH, habits=_CALM, consuming=_SHOWING, weather=_SLOW, duration_s=12.0),
        seed=4,
    ),
}
OTHER_SEEDS = range(1, 25)
"""Tried if the recorded one is outdated."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_disabled_rule_is_detected(name: str) -> None:
    rule = RULES[name]
    for seed in (rule.seed, *OTHER_SEEDS):
        with switched_off(rule):
            failure = failure_of(Simulation, seed, focus=rule.focus)
        if failure is not None and BEYOND in str(failure):
            assert failure_of(Simulation, seed, focus=rule.focus) is None
            return
    pytest.fail(f"no seed notices that this rule does not hold: {name}")
