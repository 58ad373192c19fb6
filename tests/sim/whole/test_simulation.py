"""Whole nodes under faults lose, repeat and change nothing, and go on once everything is repaired.

Each of the first seeds runs twice, and both runs are equal event by event.
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial

import pytest

from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.rare import Rare
from tests.sim.kit.rules import switched_off
from tests.sim.kit.seeds import failure_of, run_seed
from tests.sim.outcome import run_twice
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.rules import RULES
from tests.sim.whole.shown_offsets import SHOWN, SHOWN_FIRST
from tests.sim.whole.simulation import Simulation
from tests.sim.whole.swarm import moving, still

ONE_SEED = 1
FEW_SEEDS = range(2, 4)
SEEDS = range(4, 131)
MORE_SEEDS = range(131, 381)
"""Run one by one while a rare state is missing: a change of the nodes moves it to other seeds."""
FOUND = {
    401917: "a node that starts ends when another one asks it to let it join",
    600124: "the last acks of a topic are lost while those of another one are being committed",
    770190: "a node that had begun alone founds a second cluster when its disk is lost",
    900278: "a removed node that lacks the last entries says that its disk is slow",
    900057: "a cluster whose commit index is below its configuration never starts again",
}
"""Seeds that have found something, and what it was."""
MORE_FOUND = {
    2098: "an answered ack waits for the news of a delivery while the link is cut, and is lost",
    340129: "a replica whose acknowledgements were lost waits for a copy of what it has",
    340516: "stages wait for a replica with a slow disk, although they are durable on a majority",
    400072: "a copy of a directory is taken for one without entries, as all of them are applied",
    400663: "a removal without a known outcome is refused from then on",
    5233: "a leader commits by a configuration that a follower has replaced already",
    401360: "a record that is delivered after offsets were set has the position before committed",
    401404: "the ack of a lent record is lost with its partition, before its delivery is told",
    401881: "a machine that is down for good is switched on by an earlier fault",
    402383: "of two alterations at the same time one is refused",
    500488: "a node that joins later admits an older copy of a directory, and relays feed it",
    600143: "a commit waits for a slow one before it",
    600175: "a commit waits for a slow one before it",
    770024: "a node that had begun alone founds a second cluster when its disk is lost",
    770234: "a node that starts again admits an older copy of a directory, and is a majority with it",
    7000103: "the ack of a lent record is committed seconds later, as its delivery is not told",
    8100036: "a founder stamps by its own clock alone, although others have joined that disagree",
    900274: "a commit waits for a slow one before it",
    910289: "a machine that is paused for good goes on",
    9101224: "a machine that has just ended is called",
    9101229: "the removal of a file of the journal ends just after the first follower has come",
    9100163: "a node that leads passes a batch on to others, as its replica has needed a copy, and hangs",
}
"""The same, in `make test-all`."""
LONG_S = 3000.0
"""More than the seeds take on a busy machine."""
LEAST = {
    Rare.RESTED: 5,
    Rare.WOKE: 10,
    "acks answered": 3000,
    "acks lost with their owner": 30,
    "calls failed": 100,
    "calls unknown": 100,
    "calls: join group": 20,
    "copies refused": 3,
    "faults of a disk": 5,
    "histories checked": 200,
    "log: a checkpoint was fetched": 20,
    "log: a peer is refused": 20,
    "log: a replica lacks records, and copies them from another one": 5,
    "log: a replica was copied, and goes on": 5,
    "log: founding a cluster": 50,
    "log: joined a cluster": 50,
    "log: this process was paused": 5,
    "members put out for their silence": 1,
    "offsets committed": 500,
    "offsets set": 10,
    SHOWN: 200,
    SHOWN_FIRST: 30,
    "orderly stops": 10,
    "partitions that moved": 200,
    "publications": 100,
    "records handed out": 3000,
    "records handed out elsewhere": 500,
    "records in replicas": 1000,
    "refused starts": 1,
    "log: a replica has gone to other nodes": 30,
    "log: partitions move": 20,
    # All clocks jump for one rule alone.
    **{kind.text: 3 for kind in {*FaultKind} - {FaultKind.JUMP}},
}
"""Least occurrences of each state in all seeds together, in a quarter of which partitions move."""
MOVING_SEED = 6
MOVING_FOUND = {
    6011: "clients send more than the network carries, and a node that starts waits behind it for good",
}
"""As `FOUND`, of those in which partitions move."""
MOVING_SEEDS = range(1, 41)
LEAST_MOVING = {
    "a node drained for a while": 20,
    "log: a replica was copied, and goes on": 60,
    "log: a replica has gone to other nodes": 60,
    "log: partitions move": 20,
    "moves planned for an operator": 20,
    FaultKind.CANCEL.text: 15,
    FaultKind.LATE_ENDS.text: 4,
    FaultKind.LATE_METADATA.text: 8,
    FaultKind.REBALANCE.text: 10,
    FaultKind.REPLICATION.text: 10,
    "partitions move": 80,
}
"""The same, of those in which partitions move."""


@pytest.mark.slow
def test_a_seed_loses_repeats_and_changes_nothing() -> None:
    counts = run_seed(Simulation, ONE_SEED).counts
    for what in ("calls ok", "entries committed", "leaders", "marks", "records appended"):
        assert counts[what] >= 10, what


@pytest.mark.slow
def test_few_seeds_lose_repeat_and_change_nothing() -> None:
    counts = run_twice(FEW_SEEDS, partial(run_seed, Simulation), lambda seed: Simulation(seed).run())
    for what in ("calls ok", "entries committed", "leaders", "marks", "records appended", "records fetched"):
        assert counts[what] >= 1, what


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*FOUND, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE_FOUND)]
)
def test_a_seed_that_has_found_something_passes(seed: int) -> None:
    run_seed(Simulation, seed, still)


@pytest.mark.slow
def test_a_failure_names_its_seed_its_faults_and_the_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "an id of a node is used once"
    seed = RULES[rule].seed
    with switched_off(RULES[rule]), pytest.raises(ClusterFailure) as raised:
        run_seed(Simulation, seed)
    text = str(raised.value)
    assert text.startswith(f"seed {seed}: ClusterFailure: ")
    assert "faults that are needed:\n" in text
    assert re.search(r"^ *[\d.]+ \d starts, the 1. time", text, re.MULTILINE)
    assert failure_of(Simulation, seed) is None


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


@pytest.mark.slow
def test_partitions_move_and_lose_nothing() -> None:
    counts = moved(MOVING_SEED)
    for what in ("calls: move", "log: a replica has gone to other nodes", "marks", "records in replicas"):
        assert counts[what] >= 1, what


@pytest.mark.slow
@pytest.mark.parametrize("seed", MOVING_FOUND)
def test_a_seed_that_has_found_something_passes_while_partitions_move(seed: int) -> None:
    moved(seed)


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(LONG_S)
def test_partitions_move_in_all_ways_and_lose_nothing() -> None:
    counts: Counter[str] = Counter()
    for seed in MOVING_SEEDS:
        counts += moved(seed)
    assert missing(counts, LEAST_MOVING) == []


def moved(seed: int) -> Counter[str]:
    """Events of a run in which partitions move."""
    return run_seed(Simulation, seed, moving).counts


def missing(counts: Counter[str], least: Mapping[str, int] = LEAST) -> list[str]:
    """States that occurred too rarely, with the number of times."""
    return [f"{what}: {counts[what]}" for what in least if counts[what] < least[what]]
