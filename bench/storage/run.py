"""Common parts of the storage measurements: scale, directory, results, and a process per load."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kit.figures import Figure
from bench.kit.processes import pinned

LOAD_SECONDS_MAX = 300.0
"""Maximum lifetime of a load process."""
APPEND_SECONDS_MAX = 60.0
"""Maximum duration of appends."""

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StorageScale:
    """Amount of work."""

    rounds: int = 3
    flushes: int = 4000
    sustained_bytes: int = 3_000_000_000
    produce_seconds: float = 4.0
    idle_partitions: int = 10_000
    committed_offsets: int = 100_000
    fetched_bytes: int = 1 << 30
    cold_seconds: float = 4.0
    crash_bytes: int = 5_000_000_000
    crash_single_bytes: int = 150_000_000
    stall_seconds: float = 8.0


QUICK = StorageScale(
    rounds=1,
    flushes=1000,
    sustained_bytes=500_000_000,
    produce_seconds=1.5,
    idle_partitions=2_000,
    committed_offsets=20_000,
    fetched_bytes=256 << 20,
    cold_seconds=1.5,
    crash_bytes=500_000_000,
    crash_single_bytes=30_000_000,
    stall_seconds=2.0,
)


@dataclass(slots=True)
class Results:
    """Figures, and notes on them."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Bench:
    """One run: its scale and directory. `crashed` has the directories left by killed writers."""

    scale: StorageScale
    directory: Path
    crashed: dict[str, tuple[Path, Results]] = field(default_factory=dict)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new directory, which exists during the `with` block."""
        folder = self.directory / "load"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def default_parent() -> Path:
    """The directory of temporary files, if it is on the file system of the current directory, else
    the current directory.
    """
    temporary, here = Path(tempfile.gettempdir()), Path.cwd()
    return temporary if temporary.stat().st_dev == here.stat().st_dev else here


def run_load(name: str, *, core: int | None = None, **arguments: Any) -> Found:
    """Run a load in a process of its own, on one core if given; returns its last line."""
    command = [sys.executable, "-m", "bench.storage.loads", name, json.dumps(arguments)]
    command = command if core is None else pinned(core, command)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LOAD_SECONDS_MAX)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def at_most(name: str, value: float, unit: str, most: float, **more: Any) -> Figure:
    """A figure whose target is at most `most`."""
    return Figure(name, value, unit, target=f"<= {most:,g} {unit}", met=value <= most, **more)


def at_least(name: str, value: float, unit: str, least: float, **more: Any) -> Figure:
    """A figure whose target is at least `least`."""
    return Figure(name, value, unit, target=f">= {least:,g} {unit}", met=value >= least, **more)


def stall_notes(label: str, loop: Found) -> list[str]:
    """Notes on the longest stalls of the loop."""
    notes = [
        f"{label}: {loop['above']} of {loop['turns']:,} turns above 10 ms by our own doing; "
        f"others had the core for {1000 * loop['max_taken']:.1f} ms at most"
    ]
    for stall in loop["stalls"]:
        ms = {name: 1000 * value for name, value in stall.items() if name != "seen"}
        notes.append(
            f"  {ms['seconds']:.1f} ms, and {ms['taken_seconds']:.1f} ms for others; in line for a core {ms['in_line_seconds']:.1f} ms; "
            f"on one {ms['loop_cpu_seconds']:.1f} ms, all threads {ms['process_cpu_seconds']:.1f} ms; "
            f"collecting cycles {ms['gc_seconds']:.1f} ms"
        )
        seen = sorted(stall["seen"].items(), key=lambda item: -item[1])
        notes += [f"    {count} x {where}" for where, count in seen[:4]]
    return notes
