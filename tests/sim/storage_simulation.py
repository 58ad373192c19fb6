"""The storage of one node under crashes: a seeded workload on a simulated disk, against a model.

A run is one data directory and several lives of a process on it. A life starts the node, compares
its data with the model, performs random operations, and ends: cleanly, killed, or by a power
failure, at a random operation of the disk, also during a start. In some lives the disk has little
or no space for a while, or one call fails. In between, a copy of the disk gets one bit flipped and
is started too. In the last life nothing fails: all data must be there, all requests must be
answered, and nothing may be left over.

    python -m tests.sim.storage_simulation --seeds 1..1000
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from unittest.mock import patch

from structlog.testing import capture_logs

from pixy.storage.partition import log_segments, segment
from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.life import Aim, Life
from tests.sim.model import Model
from tests.sim.probe import Probe
from tests.sim.world import World, run_process


class SimulationFailure(AssertionError):
    """The storage broke a promise. The message has the seed."""


class Simulation:
    """One run.

    Args:
        seed: the seed of all randomness.
        lives: number of successive processes, without the last healthy one.
        ignored: sites whose syncs are ignored, as named by the disk.
        aim: where the processes end; None for anywhere.

    Attributes:
        disk: the simulated disk.
        counts: number of events by kind.
    """

    def __init__(
        self, seed: int, *, lives: int = 5, ignored: Iterable[str] = (), aim: Aim | None = None
    ) -> None:
        self.seed = seed
        self._aim = aim
        rng = Random(seed)
        self.disk = SimulatedDisk(Random(rng.getrandbits(64)))
        self.disk.ignored = frozenset(ignored)
        clock = FakeClock(monotonic=0.0)
        self._world = World(rng, self.disk, clock, Model(clock))
        self.counts: Counter[str] = self._world.counts
        self._lives = lives

    def run(self) -> None:
        """Raise `SimulationFailure` if an expectation does not hold."""
        rng = self._world.rng
        life = 0
        try:
            # Segments are small here, and should have indexes nevertheless.
            with (
                capture_logs(),
                patch.object(segment, "INDEX_INTERVAL_BYTES", 1500),
                patch.object(log_segments, "LINK_BYTES_MIN", 2500),
            ):
                while life < self._lives:
                    life += 1
                    self._run_life(healthy=False)
                    if rng.random() < 0.4:
                        self._probe()
                    self._world.clock.advance(rng.choice((0, 0, 0, 1, 100, 8 * 24 * 3600)))
                life += 1
                self._run_life(healthy=True)
                self.counts["expired offsets"] = self._world.model.offsets.forgotten
        except Exception as error:
            raise SimulationFailure(
                f"seed {self.seed}, life {life}: {type(error).__name__}: {error}"
            ) from error

    def _run_life(self, *, healthy: bool) -> None:
        self.disk.restart()
        life = Life(self._world, healthy=healthy, aim=self._aim)
        life.plan()
        run_process(self._world, life.live)
        life.check_end()
        self.disk.end()
        if life.loses_power:
            self.counts["losses of power"] += 1
            self.disk.lose_power()

    def _probe(self) -> None:
        """Flip a bit in a copy of the disk, and start it."""
        probe = Probe(self._world)
        probe.run()
        self.counts += probe.counts


def run_seed(seed: int, *, lives: int = 5, ignored: Iterable[str] = (), aim: Aim | None = None) -> Simulation:
    """Run one seed.

    Raises:
        SimulationFailure: the storage broke a promise.
    """
    simulation = Simulation(seed, lives=lives, ignored=ignored, aim=aim)
    simulation.run()
    return simulation


def main() -> None:
    """Run a range of seeds, stop at the first failure."""
    parser = argparse.ArgumentParser(description="Crash the storage on a simulated disk.")
    parser.add_argument("--seeds", default="1..500", help="first..last, or one seed")
    parser.add_argument("--ignore", action="append", default=[], help="a place whose syncs do nothing")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(int(first), int(last or first) + 1):
        try:
            counts += run_seed(seed, ignored=arguments.ignore).counts
        except SimulationFailure:
            print(
                f"failed; again with: python -m tests.sim.storage_simulation --seeds {seed}", file=sys.stderr
            )
            raise
        if seed % 100 == 0:
            print(f"seed {seed}: {time.monotonic() - began:.1f} s", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:9} {what}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
