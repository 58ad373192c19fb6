"""Rules of idempotent producers, each with a way to disable it; see `rules`."""

from typing import Any
from unittest.mock import patch

from pixy.records import producers
from pixy.records.producers import ProducerTable
from tests.sim.kit.rules import Rule
from tests.sim.whole import broken_producers as broken
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.focuses import CUTS, PRODUCERS, SLOW, aimed
from tests.sim.whole.swarm import Focus, Producing, Swarm

_HABITS = PRODUCERS | {"clients": 2, "open_max": 1, "think_s": 0.2}


def _producing(*kinds: FaultKind, **choices: Any) -> Focus:
    options: dict[str, Any] = {
        "habits": _HABITS,
        "producing": Producing(4, think_s=0.03, moves=0.5, again=0.2),
        "weather": SLOW,
    }
    return aimed(*kinds, **(options | choices))


PRODUCER_RULES: dict[str, Rule[Swarm]] = {
    "a batch of a producer is judged when it is proposed": Rule(
        [patch.object(ProducerTable, "_judge", broken.judged_by_what_is_applied)], _producing(*CUTS)
    ),
    "what producers have written is kept and copied": Rule(
        [patch.object(ProducerTable, "kept", broken.keeps_nothing)],
        # Slow ones: what they have written last is not in the journal any more.
        _producing(
            FaultKind.CRASH,
            FaultKind.CRASH_ALL,
            FaultKind.LAGGARD,
            producing=Producing(6, think_s=0.6, moves=0.5, again=0.3),
            duration_s=12.0,
        ),
        seed=2,
    ),
    "a batch of a producer follows the one before": Rule(
        [patch.object(producers, "_judge_known", broken.accepts_a_gap)], _producing(*CUTS)
    ),
    "a repetition is answered with the offset of its original": Rule(
        [patch.object(producers, "_judge_known", broken.answers_with_the_newest)], _producing(*CUTS)
    ),
}
