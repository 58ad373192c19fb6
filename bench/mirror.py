"""`python -m bench.mirror`: a mirror between two clusters, beside the rate of Append to such a
cluster, in one run.

    append   batches of 250 KB into 8 partitions of a cluster, 8 requests in flight, by a client in
             a process of its own
    mirror   `pixy mirror --once` of that topic into an empty cluster: its start counts

All of it shares the cores.

--mib N     MiB to copy (default 512)
--nodes N   nodes of each cluster (default 1)
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.kit.commands import run_command
from bench.kit.figures import Figure, as_table, machine
from tests.integration.clusters import Cluster

_MIB = 1 << 20
_WANTED = 0.5


def _append(address: str, size: int) -> dict[str, Any]:
    options = {
        "partitions": 8,
        "batch_bytes": 250_000,
        "request_bytes": 1_000_000,
        "total_bytes": size,
        "in_flight": 8,
    }
    command = [sys.executable, "-m", "bench.log.loads", "append", address, json.dumps(options)]
    done: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return done


def measure(size: int, nodes: int) -> list[Figure]:
    """Append, then the mirror of it."""
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        with Cluster(folder / "source", nodes) as source, Cluster(folder / "target", nodes) as target:
            source.start()
            target.start()
            appended = _append(source.nodes[0].address, size)
            source.wait_in_sync()
            ran = run_command(
                *("mirror", "--once", "--topics", "bulk", "--json"),
                *("--from", source.nodes[0].address, "--to", target.nodes[0].address),
            )
    done = json.loads(ran.output.splitlines()[-1])
    assert (done["event"], done["lag"]) == ("done", 0)
    append, rate = appended["bytes"] / appended["seconds"], appended["bytes"] / ran.seconds
    ratio = rate / append
    return [
        Figure("mirror", rate / 1e6, "MB/s", append / 1e6, ratio, f"ratio >= {_WANTED}", ratio >= _WANTED),
        Figure("  its time of a processor", 1e9 * ran.processor_s / appended["bytes"], "s/GB"),
        Figure("  its memory", ran.memory_bytes / _MIB, "MiB"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.mirror", description="Mirrors between clusters on this machine."
    )
    parser.add_argument("--mib", type=int, default=512, help="MiB to copy")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of each cluster")
    options = parser.parse_args(arguments)
    figures = measure(options.mib * _MIB, options.nodes)
    print(" ".join(f"{name} {value}" for name, value in machine().items()))
    print(as_table(figures, reference="Append"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
