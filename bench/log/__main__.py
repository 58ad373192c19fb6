"""`python -m bench.log`: the bulk log API over gRPC, beside the raw speed of the machine's disk, in
one run.

--dir FOLDER    where to write; default: a temporary directory on the current file system
--quick         a fifth of the work, as a smoke test; its figures prove nothing
"""

import argparse
import sys
from pathlib import Path

from bench.kit.figures import as_table, machine
from bench.log.measure import measure_log
from bench.storage.run import default_parent


def main() -> int:
    """Measure, and print a table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench.log", description="The bulk log API over gRPC.")
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="where to write; never in memory")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work; its figures prove nothing")
    arguments = parser.parse_args()
    print(" ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    print(as_table(measure_log(arguments.dir or default_parent(), arguments.quick), reference="raw disk"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
