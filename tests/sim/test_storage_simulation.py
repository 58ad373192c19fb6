"""Acknowledged data survives all failures of the process and the machine: three hundred seeds."""

from collections import Counter
from collections.abc import Callable

import pytest

from pixy.cluster.log.relocation import Relocation
from pixy.storage import JournalRecord
from tests.sim.disk import Operation
from tests.sim.storage_simulation import Simulation, SimulationFailure, run_seed

SEEDS = range(1, 201)
FEW_SEEDS = SEEDS[:4]
MORE_SEEDS = SEEDS[4:8]
"""For quick runs."""

VARIED_SEEDS = (86, 83, 12, 21, 49)
"""Seeds with every kind of operation. Only a hint, which saves seconds."""

KINDS = {
    ("create", ".batches"),
    ("create", ".journal"),
    ("create", ".log"),
    ("create", ".timeindex"),
    ("create", "reserve"),
    ("link", ".log"),
    ("remove_directory", "deleted"),
    ("rename", ".batches"),
    ("rename", ".checkpoint"),
    ("rename", "deleted"),
    ("rename", "identity"),
    ("rename", "stage"),
    ("truncate", ".index"),
    ("truncate", ".journal"),
    ("truncate", ".log"),
    ("unlink", ".batches"),
    ("unlink", ".checkpoint"),
    ("unlink", ".journal"),
    ("unlink", ".log"),
    ("unlink", ".part"),
    ("unlink", "identity"),
    ("unlink", "reserve"),
}
"""Operations on files, by the suffixes of their names, that occur sooner or later."""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [FEW_SEEDS, pytest.param(MORE_SEEDS, marks=pytest.mark.slow)])
def test_few_seeds_lose_invent_and_change_nothing(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed)


@pytest.mark.long
@pytest.mark.longest
def test_nothing_is_lost_invented_or_changed() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += run_seed(seed).counts
    # All kinds of events have occurred.
    for what in (
        "appends to deleted topics",
        "batches",
        "calls without room",
        "clean stops",
        "commits",
        "ends at an operation",
        "ends during a start",
        "expired offsets",
        "failed calls",
        "failed reads",
        "flipped bits answered when read",
        "flipped bits flipped back",
        "flipped bits harmless",
        "flipped bits in batches",
        "flipped bits in checkpoint",
        "flipped bits in identity",
        "flipped bits in index",
        "flipped bits in journal",
        "flipped bits in log",
        "flipped bits in partition identity",
        "flipped bits in stage",
        "flipped bits in timeindex",
        "flipped bits not ready",
        "flipped bits refused at start",
        "full disks",
        "full disks with a reserve",
        "losses of power",
        "parts published",
        "publications",
        "publications again",
        "publications refused",
        "publications that were there already",
        "readers cut off",
        "readers of deleted topics",
        "refused starts",
        "stages",
        "stages at once",
        "stages discarded",
        "stages left",
        "syncs without room",
        "topics: alter",
        "topics: create",
        "topics: delete",
    ):
        assert counts[what] >= 5, what


@pytest.mark.slow
def test_every_file_operation_of_the_storage_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: Counter[tuple[str, str]] = Counter()
    relocated: list[JournalRecord] = []
    append = Relocation._append

    def note(operation: Operation) -> None:
        name = operation.path.name
        kind = "deleted" if name.endswith("-deleted") else operation.path.suffix or name
        kinds[operation.what, kind] += 1

    def note_and_append(
        relocation: Relocation,
        then: Callable[[bool], None],
        entries: list[JournalRecord] | None,
        error: BaseException | None,
    ) -> None:
        relocated.extend(entries or ())
        append(relocation, then, entries, error)

    monkeypatch.setattr(Relocation, "_append", note_and_append)
    for seed in (*VARIED_SEEDS, *SEEDS):
        simulation = Simulation(seed)
        simulation.disk.before = note
        simulation.run()
        if relocated and kinds.keys() >= KINDS:
            break
    assert KINDS - kinds.keys() == set()
    assert relocated


@pytest.mark.slow
def test_one_seed_is_one_run() -> None:
    def operations(seed: int) -> list[Operation]:
        found: list[Operation] = []
        simulation = Simulation(seed)
        simulation.disk.before = found.append
        simulation.run()
        return found

    assert operations(7) == operations(7)
    assert operations(7) != operations(8)


@pytest.mark.slow
def test_a_failure_reports_its_seed() -> None:
    with pytest.raises(SimulationFailure, match=r"^seed 1, life \d: "):
        run_seed(1, ignored=["storage/journal/journal.py:Journal._write write_durably"])
