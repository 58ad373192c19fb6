"""python -m tests.sim.raft --seeds N --from S: runs N seeds starting with S, and prints statistics
of their events.
"""

import argparse
import sys
import time
from collections import Counter

from tests.sim.raft.checks import RaftFailure
from tests.sim.raft.seeds import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.raft", description="simulate Raft groups under faults"
    )
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="how many")
    parser.add_argument("--from", type=int, default=1, metavar="S", dest="first", help="the first one")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    failed = 0
    began = time.perf_counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            counts += run_seed(seed).counts
        except RaftFailure as failure:
            failed += 1
            print(f"{failure}\n", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:12d} {what}")
    print(f"{options.seeds} seeds, {failed} failed, {time.perf_counter() - began:.0f} s")
    return 1 if failed else 0


sys.exit(main())
