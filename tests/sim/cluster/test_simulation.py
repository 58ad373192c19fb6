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
SEEDS = range(5, 351)
LONG_S = 3000.0
"""More than the seeds take on a busy machine."""


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
    for what in (
        *[kind.text for kind in FaultKind],
        "commands answered from the rows",
        "deadlines exceeded",
        "faults of a disk",
        "older selves refused",
        "orderly stops",
        "requests: append",
        "requests: begin",
        "requests: command",
        "snapshots fetched",
        "snapshots not fetched",
    ):
        assert counts[what] >= 10, what
    assert counts["older selves retired"] >= 3
    assert [state for state in Rare if not counts[state]] == []
