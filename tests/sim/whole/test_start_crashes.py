"""All nodes of a cluster with data crash at the same operation of their starts, and then start
whole: each of these starts succeeds, and nothing that clients were told is lost.

Random faults meet few of these operations: here every one has its turn.
"""

import asyncio
from collections.abc import Collection, Sequence

import pytest

from tests.sim.kit.seeds import failure_of, run_seed
from tests.sim.whole.focuses import BUSY, CONSUMERS, aimed
from tests.sim.whole.operator import Operator
from tests.sim.whole.simulation import Simulation
from tests.sim.whole.swarm import Writing
from tests.sim.whole.verdict import Verdict

_PHASES = ("before", "middle")
_WORK_S = 0.4
"""Time that clients have before the next crash."""
_STEP_S = 0.02
_STEPS = 250
"""Until then a node that does not crash waits for others, which have crashed."""
_FOCUS = aimed(
    habits=BUSY | {"clients": 3, "kinds": {"append": 30, "commit": 10, "committed_offsets": 3, "create": 5}},
    consuming=CONSUMERS | {"clients": 2},
    writing=Writing(1, 0.1),
    journal={"file_bytes": 20_000},
    heals_all=True,
)
CRASHED = "starts that crashed"
SEED, OTHER_SEEDS = 3, range(4, 12)
"""The others are tried if the first one does not notice what is wrong any more."""
FOUND = "storage/journal/recovery.py:_make_durable sync"
"""The sync of what the journal of a start has that is perhaps not durable."""
FIRST = [(operation, _PHASES[operation % 2]) for operation in range(1, 13)]
"""The operations until a node takes requests, and the first ones behind them."""
LATER = [(operation, "before") for operation in (16, 25, 40, 60, 90)]
READY = 201
"""More operations than most nodes do until they are ready. Later, too few of them crash."""
AT_ONCE = 20


class CrashedStarts(Simulation):
    """A cluster whose nodes crash in their starts.

    Attributes:
        points: operations at which all nodes crash, counted from their starts, and if before or in
            the middle of them, one after the other; in between they start whole, and clients go on.
        ignored: sites whose syncs are ignored.
    """

    points: Sequence[tuple[int, str]] = ()
    ignored: frozenset[str] = frozenset()

    async def _run(self) -> None:
        cluster = self._cluster
        self._operator, self._verdict = Operator(cluster), Verdict(cluster)
        self._rest_audit.begin(cluster.scene, cluster.running_groups)
        cluster.start()
        for machine in cluster.ordinary():
            machine.disk.ignored = self.ignored
        cluster.clients.start()
        cluster.group_clients.start()
        cluster.sinks.start()
        await self._ready()
        await asyncio.sleep(_WORK_S)
        for point in self.points:
            await self._crash_starts(*point)
            await self._ready()
            await asyncio.sleep(_WORK_S)
        self._heal()
        await self._settle("after crashed starts")
        self._start_again(power=True)
        await self._settle("after a last start of all")
        self._verdict.judge()
        cluster.watches.turn()

    async def _crash_starts(self, operation: int, phase: str) -> None:
        scene, machines = self._cluster.scene, self._cluster.ordinary()
        rng = scene.random(f"crash of starts at {scene.now}")
        power = rng.randrange(2)
        for machine in machines:
            machine.power = rng.choice((power, power, 0.5))
            machine.crashed_starts = [(operation, phase)]
        self._start_again(power=rng.random() < 0.5)
        for _ in range(_STEPS):
            await asyncio.sleep(_STEP_S)
            if all(machine.life is None for machine in machines):
                break
        scene.counts[CRASHED] += sum(machine.life is None for machine in machines)
        self._start_again(power=rng.random() < 0.5)

    def _start_again(self, *, power: bool) -> None:
        machines = self._cluster.ordinary()
        for machine in machines:
            machine.end(power=power)
        for machine in machines:
            self._cluster.switch_on(machine)


def crashing(points: Sequence[tuple[int, str]], ignored: Collection[str] = ()) -> type[CrashedStarts]:
    """Simulation of a cluster whose nodes crash at these points, see `CrashedStarts`."""
    attributes = {"points": points, "ignored": frozenset(ignored)}
    return type("CrashedStarts", (CrashedStarts,), attributes)


@pytest.mark.slow
def test_all_crash_in_their_starts_and_nothing_is_lost() -> None:
    counts = run_seed(crashing(FIRST + LATER), SEED, _FOCUS).counts
    assert counts[CRASHED] > 2 * len(FIRST + LATER)


@pytest.mark.long
@pytest.mark.parametrize("phase", _PHASES)
@pytest.mark.parametrize("first", range(1, READY, AT_ONCE))
def test_all_crash_at_any_operation_of_their_starts_and_nothing_is_lost(first: int, phase: str) -> None:
    points = [(operation, phase) for operation in range(first, first + AT_ONCE)]
    assert run_seed(crashing(points), first, _FOCUS).counts[CRASHED] > len(points)


@pytest.mark.slow
def test_without_the_sync_of_a_found_journal_a_start_fails() -> None:
    simulation = crashing(FIRST, [FOUND])
    for seed in (SEED, *OTHER_SEEDS):
        failure = failure_of(simulation, seed, focus=_FOCUS)
        if failure is not None:
            assert "CorruptData" in str(failure)  # without flushes that were acknowledged
            return
    pytest.fail("no seed notices that a start does not sync the journal that it finds")
