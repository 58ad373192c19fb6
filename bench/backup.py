"""`python -m bench.backup`: a backup of three nodes to a directory, and its restore, in one run
with the raw speed of the disk.

    backup    of a topic with four partitions, in batches of 64 KiB, as fast as it can be
    restore   of it into an empty directory

The disk's speed is the lower of two: a new file of that size, in writes of 1 MiB with a sync at the
end, before and after; and a read of the segments of a node, without the page cache, with a checksum
of each block. Before the backup and the restore the files that they read leave the page cache. The
commands run as users run them, so their start counts, and share the cores with the nodes.

--mib N   MiB to back up (default 1024)
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.copies.__main__ import fill_topic
from bench.kit.commands import run_command
from bench.kit.figures import Figure, as_table, machine
from bench.storage.raw import drop_page_cache, files_below, new_file_write, read_and_checksum
from tests.integration.clusters import Cluster
from tests.integration.daemon import proxy_config

_PARTITIONS, _BATCH_BYTES, _MIB = 4, 64 << 10, 1 << 20
_WANTED = 0.5


def measure(size: int) -> list[Figure]:
    """Both commands, and the disk before and after."""
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        with Cluster(folder / "nodes", config=proxy_config()) as cluster:
            cluster.start()
            cluster.create_topic("bulk", _PARTITIONS)
            fill_topic(cluster, size, _BATCH_BYTES, partitions=_PARTITIONS)
            cluster.wait_in_sync()
            written = [new_file_write(folder / "before", size, _MIB)]
            segments = [each for each in files_below(cluster[1].data / "topics") if each.suffix == ".log"]
            drop_page_cache(segments)
            read = read_and_checksum(segments)
            for node in cluster.nodes:
                drop_page_cache(files_below(node.data / "topics"))
            addresses = ",".join(node.address for node in cluster.nodes)
            target = folder / "target"
            backup = run_command("backup", "create", target, "--rate", 0, "--address", addresses, "--json")
        assert json.loads(backup.output)["fetched_bytes"] >= size
        drop_page_cache(files_below(target))
        restored = run_command("restore", target, folder / "restored", "--json")
        written.append(new_file_write(folder / "after", size, _MIB))
    disk = min(read, statistics.harmonic_mean(written))
    figures = []
    for name, ran in (("backup to a directory", backup), ("restore from a directory", restored)):
        rate = size / ran.seconds
        wanted, is_met = f"ratio >= {_WANTED}", rate >= _WANTED * disk
        figures += [
            Figure(name, rate / 1e6, "MB/s", disk / 1e6, rate / disk, wanted, is_met),
            Figure("  its time of a processor", 1e9 * ran.processor_s / size, "s/GB"),
            Figure("  its memory", ran.memory_bytes / _MIB, "MiB"),
        ]
    figures.append(Figure("new files before, after", written[0] / 1e6, "MB/s", written[1] / 1e6))
    figures.append(Figure("read of segments", read / 1e6, "MB/s"))
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.backup", description="Backups and restores on this machine."
    )
    parser.add_argument("--mib", type=int, default=1024, help="MiB to back up")
    figures = measure(parser.parse_args(arguments).mib * _MIB)
    here = machine()
    print(
        f"\n{here['cores']} cores, Python {here['python']}, kernel {here['kernel']}; column no-op: the disk\n"
    )
    print(as_table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
