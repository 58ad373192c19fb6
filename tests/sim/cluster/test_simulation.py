"""Three nodes under faults lose, repeat and change nothing, and go on once everything is repaired.

Each of the first seeds runs twice, and both runs are equal event by event.
"""

import re
from collections import Counter
from functools import partial

import pytest

from tests.sim.cluster.faults import FaultKind
from tests.sim.cluster.rules import RULES
from tests.sim.cluster.simulation import Simulation
from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.rare import Rare
from tests.sim.kit.rules import switched_off
from tests.sim.kit.seeds import run_seed
from tests.sim.outcome import run_twice

FEW_SEEDS = range(1, 5)
SEEDS = range(5, 121)
MORE_SEEDS = range(121, 351)
"""Run one by one while a rare state is missing: a change of the log moves it to other seeds."""
LONG_S = 3000.0
"""More than the seeds take on a busy machine."""
LEAST: dict[str, int] = {
    **{kind.text: 5 for kind in FaultKind},
    "commands answered from the rows": 5,
    "deadlines exceeded": 10,
    "faults of a disk": 5,
    "older selves refused": 10,
    "older selves retired": 2,
    "orderly stops": 10,
    "requests: append": 10,
    "requests: begin": 10,
    "requests: command": 10,
    "snapshots fetched": 10,
    "snapshots not fetched": 5,
    **dict.fromkeys(Rare, 1),
}
"""Least occurrences of each state in all seeds together."""


@pytest.mark.slow
def test_few_seeds_lose_repeat_and_change_nothing() -> None:
    counts = run_twice(FEW_SEEDS, partial(run_seed, Simulation), lambda seed: Simulation(seed).run())
    for what in ("answers", "entries committed", "leaders", "probes", "packets lost"):
        assert counts[what] >= 20, what


@pytest.mark.slow
def test_a_failure_names_its_seed_its_faults_and_the_last_events() -> None:
    rule = "a start takes entries for committed as far as it knows"
    seed = RULES[rule].seed
    with switched_off(RULES[rule]), pytest.raises(ClusterFailure) as raised:
        run_seed(Simulation, seed)
    text = str(raised.value)
    assert text.startswith(f"seed {seed}: ClusterFailure: ")
    needed = text.split("faults that are needed:\n")[1].split("the last events", maxsplit=1)[0]
    simulation = Simulation(seed)
    simulation.run()
    assert 0 < len(needed.splitlines()) < len(simulation.faults)
    assert re.search(r"^ *[\d.]+ \d>\d 1 App t", text, re.MULTILINE)


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(LONG_S)
def test_nothing_is_lost_repeated_or_changed_and_every_rare_state_occurs() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += run_seed(Simulation, seed).counts
    for seed in MORE_SEEDS:
        if not missing(counts):
            break
        counts += run_seed(Simulation, seed).counts
    assert missing(counts) == []


def missing(counts: Counter[str]) -> list[str]:
    """States that occurred too rarely, with the number of times."""
    return [f"{what}: {counts[what]}" for what, least in LEAST.items() if counts[what] < least]
