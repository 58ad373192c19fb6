"""python -m tests.sim.whole SEED: run one seed and print its events.

python -m tests.sim.whole A B: run seeds A to B, and print statistics of their events.

python -m tests.sim.whole --find RULE [A B]: find seeds that notice that a rule does not hold, of
those of `rules.RULES` with RULE in their text.
"""

import argparse
import sys
import time
from collections import Counter

from tests.sim.cluster.failure import ClusterFailure
from tests.sim.whole.rules import RULES, switched_off
from tests.sim.whole.seeds import failure_of
from tests.sim.whole.simulation import Simulation

_FOUND_MAX = 3
_TRIED = 100


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.whole", description="simulate whole nodes under faults"
    )
    parser.add_argument("first", type=int, nargs="?", default=1, help="the seed, or the first one")
    parser.add_argument("last", type=int, nargs="?", help="the last seed")
    parser.add_argument("--find", metavar="RULE", help="find seeds that notice that a rule does not hold")
    options = parser.parse_args()
    first, last = options.first, options.last
    if options.find is not None:
        rules = [rule for rule in RULES if options.find in rule]
        return max([_find(rule, range(first, (last or _TRIED) + 1)) for rule in rules], default=1)
    if last is None:
        print(Simulation(first, prints=True).run().counts)
        return 0
    return _run_all(range(first, last + 1))


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


def _find(rule: str, seeds: range) -> int:
    print(rule, flush=True)
    found = 0
    for seed in seeds:
        began = time.perf_counter()
        with switched_off(rule):
            failure = failure_of(seed, focus=RULES[rule].focus)
        if failure is not None:
            found += 1
            line = str(failure).splitlines()[0]
            print(f"  seed {seed}, {time.perf_counter() - began:.2f} s: {line[:200]}", flush=True)
            if found == _FOUND_MAX:
                return 0
    print(f"  {found} seeds of {len(seeds)}")
    return 0 if found else 1


sys.exit(main())
