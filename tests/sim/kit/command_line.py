"""The command line of a simulation.

SEED                 run one seed and print its events
A B                  run seeds A to B, and print statistics of their events
--focus NAME [A B]   the same, of runs that are about something
--find RULE [A B]    find seeds that notice that a rule does not hold, of those with RULE in
                     their text
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.rules import Rule, switched_off
from tests.sim.kit.run import Run
from tests.sim.kit.seeds import failure_of

_Swarm = TypeVar("_Swarm")

_FOUND_MAX = 3


def main(
    name: str,
    simulation: type[Run[_Swarm]],
    rules: Mapping[str, Rule[_Swarm]],
    tried: int,
    focuses: Mapping[str, Callable[[_Swarm], _Swarm]] = MappingProxyType({}),
) -> int:
    """Do what the arguments of the process say; returns its exit status.

    Args:
        name: name of the package.
        simulation: makes a run.
        rules: rules by their text.
        tried: number of the last seed that is tried for a rule, if none is given.
        focuses: what runs can be about, by name.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description="simulate nodes under faults")
    parser.add_argument("first", type=int, nargs="?", default=1, help="the seed, or the first one")
    parser.add_argument("last", type=int, nargs="?", help="the last seed")
    parser.add_argument("--focus", choices=sorted(focuses), help="what the runs are about")
    parser.add_argument("--find", metavar="RULE", help="find seeds that notice that a rule does not hold")
    options = parser.parse_args()
    first, last = options.first, options.last
    if options.find is not None:
        seeds = range(first, (last or tried) + 1)
        found = [_find(simulation, rule, rules[rule], seeds) for rule in rules if options.find in rule]
        return 0 if found and all(found) else 1
    focus = focuses.get(options.focus)
    if last is None:
        print(simulation(first, prints=True, focus=focus).run().counts)
        return 0
    return _run_all(simulation, range(first, last + 1), focus)


def _run_all(simulation: type[Run[_Swarm]], seeds: range, focus: Callable[[_Swarm], _Swarm] | None) -> int:
    counts: Counter[str] = Counter()
    failed = []
    began = time.perf_counter()
    for seed in seeds:
        try:
            counts += simulation(seed, focus=focus).run().counts
        except ClusterFailure as failure:
            failed.append(seed)
            print(f"seed {seed}: {failure}", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:9} {what}")
    print(f"{len(seeds)} seeds, failed: {failed}, {time.perf_counter() - began:.0f} s")
    return 1 if failed else 0


def _find(simulation: type[Run[_Swarm]], text: str, rule: Rule[_Swarm], seeds: range) -> int:
    """Number of seeds found."""
    print(text, flush=True)
    found = 0
    for seed in seeds:
        began = time.perf_counter()
        with switched_off(rule):
            failure = failure_of(simulation, seed, focus=rule.focus)
        if failure is not None:
            found += 1
            line = str(failure).splitlines()[0]
            print(f"  seed {seed}, {time.perf_counter() - began:.2f} s: {line[:200]}", flush=True)
            if found == _FOUND_MAX:
                return found
    print(f"  {found} seeds of {len(seeds)}")
    return found
