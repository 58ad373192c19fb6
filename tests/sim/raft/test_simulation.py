"""Five hundred seeds of raft groups under faults violate no safety property, and then make
progress.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

import pixy.raft
from tests.sim.raft import RaftFailure, Simulation, run_seed
from tests.sim.raft.faults import FaultKind, Profile
from tests.sim.raft.rules import switched_off

pytestmark = pytest.mark.slow

SEEDS = range(1, 501)
FEW_SEEDS = SEEDS[:10]
"""A quick subset."""


def run(seeds: Sequence[int]) -> Counter[str]:
    """Statistics of a run, by kind."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = run_seed(seed)
        counts += outcome.counts
        stuck = outcome.counts["elections that a removed node prevents"]
        assert outcome.counts["proposals"] >= 200 or stuck, (
            f"seed {seed} made {outcome.counts['proposals']} proposals"
        )
        assert outcome.counts["faults"] >= 3, f"seed {seed} had {outcome.counts['faults']} faults"
        assert outcome.counts["restarts"] >= 1, f"seed {seed} had no restart"
    return counts


def test_a_few_seeds_violate_no_safety_property() -> None:
    run(FEW_SEEDS)


@pytest.mark.long
def test_no_safety_property_is_violated_and_every_event_occurs() -> None:
    counts = run(SEEDS)
    for kind in FaultKind:
        assert counts[kind.value] >= 50, kind
    for what in (
        "snapshots",
        "snapshots whose data comes",
        "snapshots whose data does not come",
        "membership changes",
        "lost messages",
        "refused messages",
        "dropped proposals",
        "reads",
        "snapshots that are not ready",
        "sends that wait for entries",
        "hand-outs that wait for entries",
        "campaigns that wait for entries",
    ):
        assert counts[what] >= 100, what


def test_a_run_makes_no_text_for_a_trace_that_nobody_reads() -> None:
    folder = str(Path(pixy.raft.__file__).parent)
    made: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            made[code.co_name] += code.co_name == "__str__" or code.co_name.startswith("describe_")

    simulation = Simulation(1)
    sys.setprofile(called)
    try:
        simulation.run()
    finally:
        sys.setprofile(None)
    assert "become_leader" in made
    assert +made == Counter()


def test_a_seed_is_deterministic() -> None:
    assert run_seed(3).counts == run_seed(3).counts


def test_a_failure_names_its_seed_its_faults_and_the_last_events() -> None:
    with switched_off("only a log that is complete enough gets votes"):
        failing = next(seed for seed in range(31, 130) if _fails(seed))
        with pytest.raises(RaftFailure) as raised:
            run_seed(failing)
    text = str(raised.value)
    assert text.startswith(f"seed {failing}: ")
    needed = text.split("faults that are needed:\n")[1].split("the last events", maxsplit=1)[0]
    assert len(needed.splitlines()) < len(Simulation(failing).faults)
    assert re.search(r"^ *\d+ \d->\d Msg", text, re.MULTILINE)


def _fails(seed: int) -> bool:
    try:
        Simulation(seed).run()
    except RaftFailure:
        return True
    return False


def test_a_profile_can_be_selected() -> None:
    assert Simulation(1, profile=Profile.LEADERS).profile is Profile.LEADERS
