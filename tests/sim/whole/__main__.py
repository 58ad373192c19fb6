"""python -m tests.sim.whole SEED: run one seed and print its events.

python -m tests.sim.whole A B: run seeds A to B, and print statistics of their events.
"""

import argparse
import sys
import time
from collections import Counter

from tests.sim.cluster.failure import ClusterFailure
from tests.sim.whole.simulation import Simulation


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.whole", description="simulate whole nodes under faults"
    )
    parser.add_argument("first", type=int, nargs="?", default=1, help="the seed, or the first one")
    parser.add_argument("last", type=int, nargs="?", help="the last seed")
    options = parser.parse_args()
    if options.last is None:
        print(Simulation(options.first, prints=True).run().counts)
        return 0
    return _run_all(range(options.first, options.last + 1))


def _run_all(seeds: range) -> int:
    counts: Counter[str] = Counter()
    failed = []
    began = time.perf_counter()
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            counts += simulation.run().counts
        except ClusterFailure as failure:
            failed.append(seed)
            print(f"seed {seed}: {failure}", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:9} {what}")
    print(f"{len(seeds)} seeds, failed: {failed}, {time.perf_counter() - began:.0f} s")
    return 1 if failed else 0


sys.exit(main())
