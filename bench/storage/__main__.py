"""`python -m bench.storage`: speed of the storage, beside the raw speed of the machine's disk, in
one run.

--only NAME...  flush, sustained, produce, partitions, idle, fetch, cold, ready, check, stalls,
                topics
--dir FOLDER    where to write; default: a temporary directory on the current file system
--quick         a tenth of the work, as a smoke test; its figures prove nothing
--json FILE     write all figures as JSON, too

The column `machine` is the reference of the figure: the raw disk, one partition, a quiet disk, an
idle loop.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.kit.figures import Figure, machine
from bench.storage.measures import MEASURES
from bench.storage.raw import file_system
from bench.storage.run import QUICK, Bench, Results, StorageScale, default_parent

_IN_MEMORY = ("tmpfs", "ramfs")
_WIDTHS = (74, 10, 10, 6)


def main() -> int:
    """Run the selected measurements."""
    arguments = _arguments()
    parent = arguments.dir or default_parent()
    kind = file_system(parent)
    if kind in _IN_MEMORY:
        raise SystemExit(f"{parent} is on {kind}, which has no disk to wait for: give another --dir")
    started = time.monotonic()
    found: dict[str, Results] = {}
    here = machine() | {"file_system": kind}
    print(
        f"{here['cores']} cores, load {here['load']}, Python {here['python']}, kernel {here['kernel']}, {kind}\n"
    )
    print(_line("", "pixy", "machine", "ratio", "", "target", ""))
    with tempfile.TemporaryDirectory(prefix="pixy-bench-", dir=parent) as name:
        bench = Bench(QUICK if arguments.quick else StorageScale(), Path(name))
        for measure in arguments.only or MEASURES:
            found[measure] = MEASURES[measure](bench)
            _print(found[measure])
    print(f"\n{time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.2f}")
    if arguments.json:
        results = {measure: asdict(each) for measure, each in found.items()}
        text = json.dumps({"machine": here, "scale": asdict(bench.scale), "results": results}, indent=2)
        arguments.json.write_text(text + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bench.storage", description="What the storage can do beside what the disk can do."
    )
    parser.add_argument(
        "--only", nargs="+", choices=MEASURES, metavar="NAME", help=f"of {', '.join(MEASURES)}"
    )
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="where to write; never in memory")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work; its figures prove nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON, too")
    return parser.parse_args()


def _print(results: Results) -> None:
    for figure in results.figures:
        print(_figure_line(figure), flush=True)
    for note in results.notes:
        print(f"    {note}", flush=True)


def _figure_line(figure: Figure) -> str:
    return _line(
        figure.name,
        _number(figure.value),
        "" if figure.reference is None else _number(figure.reference),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        figure.unit,
        figure.target,
        {True: "ok", False: "MISSED", None: ""}[figure.met],
    )


def _line(name: str, value: str, reference: str, ratio: str, unit: str, target: str, verdict: str) -> str:
    cells = [name.ljust(_WIDTHS[0])]
    cells += [cell.rjust(w) for cell, w in zip((value, reference, ratio), _WIDTHS[1:], strict=True)]
    return " ".join([*cells, unit.ljust(5), target.ljust(16), verdict]).rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
