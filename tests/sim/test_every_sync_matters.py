"""Every sync matters: without any one of them the storage loses data, and the simulation detects
it.

The sites are found in the source. Each is disabled alone: the disk ignores the syncs of that site,
and some seed must fail. Lives end near the site (`Aim`), so that one of a few dozen seeds does,
whichever those are after a change of the code.

Some sites do what another one does a moment later or at the next start, so that no crash reveals
their absence. They are listed in `MASKED` with their masks. For these the mask is disabled, with
which the seed still passes, and then both, with which it fails: the site makes the difference.

Some rules are about order, not about a sync: they are broken by patching the code under test. Those
about the removal of a journal file are in `test_journal_file_crashes`.
"""

import ast
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pixy
from pixy.cluster import PartitionReplica
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.replicas.partitions import Partitions
from pixy.proto.state_pb2 import PartitionCommand
from pixy.storage import CheckpointId, Disk, Journal, JournalFile, PartitionLog, RecordKind
from pixy.storage.disk import identity
from pixy.storage.journal.gathered_units import GatheredUnits
from pixy.storage.partition import log_segments, partition_directory
from pixy.storage.partition.log_segments import LogSegments
from pixy.storage.partition.partition_log import SyncedPosition
from tests.sim.disk import SimulatedDisk
from tests.sim.life import Aim
from tests.sim.sample import sample
from tests.sim.storage_simulation import SimulationFailure, run_seed

SEEDS_MAX = 1200
"""A site that no seed up to this one reaches is dead, and so is a rule that none breaks."""
AIMED_SEEDS_MAX = 400
"""A site whose absence none of so many aimed seeds reveals is dead or masked."""
AIMED_LIVES = 10
HARMLESS_LIVES = (pytest.param(AIMED_LIVES, marks=pytest.mark.long), 4)
"""Numbers of aimed lives that have to lose nothing."""

VARIED_SEEDS = (49, 83, 6)
"""Seeds that reach every site. Only a hint, as in `ALONE`."""
SPLIT_SEED = 52
"""A flush over two files is lost in part. Only a hint, too."""
NAMELESS_SEED = 17
"""The power fails while a directory is removed. Only a hint, too."""
EARLY_DROP_SEED = 15
"""Fails when segments are gone that a start needs. Only a hint, too."""
ONE_CHECKPOINT_SEED = 3
"""The newest checkpoint is damaged. Only a hint, too."""
LATE_IDENTITY_SEED = 17
"""A directory is found without an identity. Only a hint, too."""

WRITE = "storage/journal/journal.py:Journal._write write_durably"
_KIND_AT = 8
"""Byte of a record's head."""

ALONE = {
    "cluster/log/recovery.py:_sync_ancestors sync_directory": 2,
    "cluster/log/recovery.py:read_directory make_directory": 25,
    "storage/checkpoints/checkpoint.py:CheckpointStore._write_part sync": 2,
    "storage/checkpoints/checkpoint.py:CheckpointStore.write make_directory": 5,
    "storage/disk/identity.py:_write sync": 3,
    "storage/disk/identity.py:_write sync_directory": 3,
    "storage/journal/journal.py:Journal._create_file sync": 7,
    "storage/journal/journal.py:Journal._create_file sync_directory": 6,
    "storage/journal/journal.py:Journal._unlink sync_directory": 15,
    "storage/journal/journal.py:Journal._write write_durably": 1,
    "storage/disk/removal.py:remove_directories sync_directory": 6,
    "storage/partition/log_segments.py:LogSegments.claim make_directory": 7,
    "storage/partition/log_segments.py:LogSegments.sync sync_directory": 4,
    "storage/journal/recovery.py:_make_durable sync": 128,
    "storage/journal/recovery.py:_make_durable sync_directory": 11,
    "storage/partition/segment.py:Segment.sync sync": 3,
}
"""Site -> an aimed seed that fails without it.

Only a hint, which saves seconds: others are tried if it passes.
"""

AIMS = {
    aim.site: aim
    for aim in (
        Aim(
            "cluster/log/recovery.py:_sync_ancestors sync_directory",
            missed="cluster/log/recovery.py:enter_directory make_directory",
        ),
        # The first flush, over the header's page and others, is torn.
        Aim("storage/journal/journal.py:Journal._create_file sync", behind=(2, 3)),
        Aim(
            "storage/journal/recovery.py:_make_durable sync",
            missed="storage/journal/journal.py:Journal._write write_durably",
        ),
        Aim(
            "storage/journal/recovery.py:_make_durable sync_directory",
            missed="storage/journal/journal.py:Journal._create_file sync_directory",
        ),
    )
}
"""Site -> how lives end to show that it matters, where an end behind the site is not enough."""

MASKED = {
    # A first start makes all names above the data directory durable.
    "cluster/log/recovery.py:enter_directory make_directory": (
        "cluster/log/recovery.py:_sync_ancestors sync_directory",
        1,
    ),
    # The two follow each other; between them only an older checkpoint is removed, of which one more
    # is left.
    "storage/checkpoints/checkpoint.py:CheckpointStore._complete sync_directory": (
        "storage/checkpoints/checkpoint.py:CheckpointStore._remove_old sync_directory",
        2,
    ),
    "storage/checkpoints/checkpoint.py:CheckpointStore._remove_old sync_directory": (
        "storage/checkpoints/checkpoint.py:CheckpointStore._complete sync_directory",
        2,
    ),
}
"""Site -> its mask, and a seed that passes without the mask and fails without both."""

REDUNDANT = {
    "storage/journal/recovery.py:_remove_leftover sync_directory": (
        "a leftover that comes back is removed again, and the file that takes its name is created durably"
    ),
}
"""Sites without which nothing is ever lost -> why."""

ELSEWHERE = {
    "staging/stage_files.py:StageFiles._make_directory make_directory": "test_staging_crashes",
    "staging/stage_files.py:StageFiles.seal sync": "test_staging_crashes",
    "staging/stage_files.py:StageFiles.seal sync_directory": "test_staging_crashes",
    "staging/stage_files.py:recover_stages sync_directory": "test_staging_crashes",
    "staging/stage_files.py:remove_stages sync_directory": "test_staging_crashes",
    "staging/stage_files.py:_rename sync_directory": "tests/staging/test_stage_files",
    "cluster/log/recovery.py:_sync_directories sync_directory": "test_first_start_crashes",
    "storage/journal/recovery.py:_cut sync": "test_torn_tail_crashes",
    "storage/partition/partition_directory.py:_remove_in_place sync_directory": (
        "tests/storage/test_partition_directory"
    ),
}
"""Sites that random lives meet too seldom -> the module that tries every operation at the right
moment.
"""

_FOUNDED = "cluster/unsafe_recovery/founded_node.py:"
NOT_HERE = {
    f"{_FOUNDED}FoundedNode. sync_directory": "tests/backup/test_restore",
    f"{_FOUNDED}FoundedNode.__init__ make_directory": "tests/backup/test_restore",
    f"{_FOUNDED}FoundedNode._empty_directory make_directory": "tests/backup/test_restore",
    f"{_FOUNDED}FoundedNode._empty_directory sync_directory": "tests/backup/test_restore",
    f"{_FOUNDED}FoundedPartition.end sync": "tests/backup/test_restore",
    "cluster/log/recovery.py:_candidate sync_directory": "tests/cluster/log/test_recovery",
    "storage/partition/segment.py:Segment._copy sync": "tests/copies/test_staged_copy",
    "storage/partition/segment.py:Segment.share sync": "tests/sim/cluster",
    "staging/piece_files.py:PieceFile._write sync": "tests/sim/test_piece_crashes",
    "staging/piece_files.py:PieceFile._write sync_directory": "tests/sim/test_piece_crashes",
    "staging/piece_files.py:PieceFile.write make_directory": "tests/sim/test_piece_crashes",
    "staging/piece_files.py:_recover sync": "tests/sim/test_piece_crashes",
    "staging/piece_files.py:recover_pieces sync_directory": "tests/sim/test_piece_crashes",
    "staging/publication_marks.py:write_mark make_directory": "tests/staging/test_publication_marks",
    "storage/checkpoints/checkpoint.py:CheckpointStore.adopt sync": "tests/sim/test_snapshot_download_crashes",
    "storage/checkpoints/checkpoint.py:CheckpointStore.make_durable sync_directory": "tests/sim/cluster/test_rules",
    "storage/checkpoints/checkpoint_download.py:CheckpointDownload.resume make_directory": (
        "tests/sim/test_snapshot_download_crashes"
    ),
    "storage/disk/worker.py:ThreadWorker._write_ended write_durably": "tests/storage/test_worker",
}
"""Sites of Kafka clusters, and of nodes with peers -> the test that shows that they matter."""

NAMED = {*ALONE, *MASKED, *REDUNDANT, *ELSEWHERE}

FORWARDED = {
    "storage/partition/log_writer.py:_Job.run sync",
    "storage/partition/log_segments.py:LogSegments.sync sync",
    "storage/partition/log_segments.py:LogSegments._sync_full sync",
    "storage/partition/partition_log.py:PartitionLog.sync sync",
}
"""These call pixy's own `sync`, which has a site in it."""

NO_DISK = {"cluster/consumer_groups/classic_coordinator.py:ClassicCoordinator. sync"}
"""Kafka's SyncGroup, which makes nothing durable."""

NO_STORAGE = {"disk.py", "read_only.py"}
"""Disk implementations, not users."""


def sites_in_the_source() -> set[str]:
    """All calls that make something durable, named as by the simulated disk."""
    root = Path(pixy.__file__).parent
    found = set()
    for part in ("storage", "staging", "cluster"):
        for path in sorted((root / part).rglob("*.py")):
            if path.name not in NO_STORAGE:
                found |= _sites(ast.parse(path.read_text()), f"{path.relative_to(root).as_posix()}:")
    return found - FORWARDED - NO_DISK


def _sites(node: ast.AST, name: str) -> set[str]:
    found = set()
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.ClassDef):
            inner = f"{name}{child.name}."
        elif isinstance(child, ast.FunctionDef):
            inner = f"{name}{child.name}"
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            call = child.func.attr
            if call in ("sync", "write_durably", "sync_directory", "make_directory"):
                found.add(f"{name} {call}")
        found |= _sites(child, inner)
    return found


def fails(seed: int) -> bool:
    try:
        run_seed(seed)
    except SimulationFailure:
        return True
    return False


def fails_without(site: str, seed: int, ignored: Sequence[str], lives: int = AIMED_LIVES) -> bool:
    """True if a run fails in which lives end near the site, and the syncs of all `ignored` are."""
    try:
        run_seed(seed, lives=lives, ignored=ignored, aim=AIMS.get(site, Aim(site)))
    except SimulationFailure:
        return True
    return False


@pytest.mark.slow
def test_every_site_in_the_source_is_accounted_for() -> None:
    assert sites_in_the_source() == NAMED | set(NOT_HERE)


@pytest.mark.slow
def test_every_site_is_reached() -> None:
    reached: set[str] = set()
    for seed in (*VARIED_SEEDS, *range(1, SEEDS_MAX)):
        reached |= set(run_seed(seed).disk.sites)
        if reached >= NAMED:
            break
    assert reached >= NAMED
    assert {site for site in reached if not site.startswith("test ")} == NAMED


@pytest.mark.slow
@pytest.mark.parametrize("site", sample(ALONE, 3))
def test_without_a_site_data_is_lost(site: str) -> None:
    for seed in (ALONE[site], *range(1, AIMED_SEEDS_MAX)):
        if fails_without(site, seed, [site]):
            return
    pytest.fail(f"no crash of {AIMED_SEEDS_MAX} seeds shows that {site} is missing")


@pytest.mark.slow
@pytest.mark.parametrize("lives", HARMLESS_LIVES)
@pytest.mark.parametrize("site", sample([*ALONE, *MASKED], 3))
def test_with_every_site_lives_that_end_near_one_lose_nothing(site: str, lives: int) -> None:
    assert not fails_without(site, 1, [], lives)


@pytest.mark.slow
@pytest.mark.parametrize("site", sample(MASKED, 3))
def test_without_a_site_and_its_mask_data_is_lost(site: str) -> None:
    mask, hint = MASKED[site]
    for seed in (hint, *range(1, AIMED_SEEDS_MAX)):
        if fails_without(site, seed, [site, mask]) and not fails_without(site, seed, [mask]):
            return
    pytest.fail(f"no crash of {AIMED_SEEDS_MAX} seeds shows that {site} is missing, even without {mask}")


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ordered", "seeds"), [pytest.param(True, 60, marks=pytest.mark.long), (True, 5), (False, SEEDS_MAX)]
)
def test_a_journal_file_is_synced_before_its_successor_is_created(
    monkeypatch: pytest.MonkeyPatch, ordered: bool, seeds: int
) -> None:
    """Every large flush is split over one file and a new one, and answered when both are synced.

    Nothing is lost if the first is synced before the second is created, and data is lost otherwise.
    """
    write = Journal._write

    def write_over_two_files(journal: Journal, gathered: GatheredUnits) -> Any:
        first, rest = _halves(gathered)
        # Compaction's writes are smaller: they would never end.
        if not first.tokens or not rest.tokens or gathered.bytes < 2000:
            return write(journal, gathered)
        disk = journal._disk
        assert isinstance(disk, SimulatedDisk)
        disk.ignored = frozenset() if ordered else frozenset({WRITE})
        try:
            half = write(journal, first)
        finally:
            disk.ignored = frozenset()
        journal.files.extend(map(JournalFile, half.files))
        journal.files[-1].add(gathered.lowest, gathered.highest, half.position)
        journal.files[-1].end = half.end
        before, journal._size = journal._file, 0  # no space left in it
        assert before is not None
        written = write(journal, rest)
        before.sync()
        return written

    monkeypatch.setattr(Journal, "_write", write_over_two_files)
    assert any(map(fails, (SPLIT_SEED, *range(1, seeds)))) is not ordered


def _halves(gathered: GatheredUnits) -> tuple[GatheredUnits, GatheredUnits]:
    """The units of a flush as two flushes. The first one has about half of the bytes, and only
    entries: the writers of other records rely on the file in which they are told.
    """
    first, rest, at = GatheredUnits(), GatheredUnits(), 0
    for unit, token in enumerate(gathered.tokens):
        is_entry = memoryview(gathered.buffers[at])[_KIND_AT] == RecordKind.ENTRY
        is_first = is_entry and not rest.tokens and first.bytes < gathered.bytes // 2
        half = first if is_first else rest
        behind = at + 2 * gathered.counts.get(unit, 1)
        half.buffers += gathered.buffers[at:behind]
        half.bytes += sum(map(len, gathered.buffers[at:behind]))
        half.counts[len(half.tokens)] = (behind - at) // 2
        half.tokens.append(token)
        half.lowest, half.highest = gathered.lowest, gathered.highest
        at = behind
    return first, rest


@pytest.mark.slow
def test_an_applied_position_is_written_only_after_the_segment_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A position that a later sync will make true is not enough."""
    sync = PartitionLog.sync
    late: set[PartitionLog] = set()

    def sync_the_next_time(log: PartitionLog) -> SyncedPosition:
        segments = log._files.segments
        if log in late or not segments:
            late.discard(log)
            return sync(log)
        late.add(log)
        begin_offset = min(log.begin_offset, log._files.end_offset)
        return SyncedPosition(begin_offset, segments[-1].base_offset, segments[-1].size)

    monkeypatch.setattr(PartitionLog, "sync", sync_the_next_time)
    assert any(fails(seed) for seed in range(1, SEEDS_MAX))


def test_the_journal_reaches_back_to_the_older_of_two_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer checkpoint may be damaged."""

    def rely_on_the_newer(replica: StateReplica, checkpoints: list[CheckpointId]) -> None:
        replica.checkpoints = checkpoints
        if checkpoints:
            replica.group.durable_index = checkpoints[-1].end_offset

    monkeypatch.setattr(StateReplica, "set_checkpoints", rely_on_the_newer)
    assert any(fails(seed) for seed in (ONE_CHECKPOINT_SEED, *range(1, SEEDS_MAX)))


@pytest.mark.slow
def test_segments_are_removed_only_after_a_position_that_begins_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command for a later begin in the journal is not enough: a start looks for the segments of
    the last position.
    """
    run_command = Partitions._run_command

    def run_and_drop(
        partitions: Partitions, replica: PartitionReplica, term: int, command: PartitionCommand
    ) -> None:
        run_command(partitions, replica, term, command)
        partitions.drop_segments(replica, replica.log.begin_offset)

    monkeypatch.setattr(Partitions, "_run_command", run_and_drop)
    assert any(fails(seed) for seed in (EARLY_DROP_SEED, *range(1, SEEDS_MAX)))


@pytest.mark.slow
def test_the_directory_of_a_deleted_topic_loses_its_name_before_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its remains after a crash may have no identity file, and their owner is unknown."""

    def leave_its_name(disk: Disk, path: Path, gone: Path) -> Path:
        return path

    for module in (partition_directory, log_segments):
        monkeypatch.setattr(module, "rename_partition_directory", leave_its_name)
    assert any(fails(seed) for seed in (NAMELESS_SEED, *range(1, SEEDS_MAX)))


@pytest.mark.slow
def test_a_directory_has_its_identity_before_its_first_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first position with the segment is too late."""
    sync, write, claim = (
        PartitionLog.sync,
        identity.write_partition_identity,
        LogSegments.claim,
    )
    late: dict[LogSegments, Callable[[], None]] = {}

    def claim_without_identity(files: LogSegments) -> None:
        def write_later(*arguments: Any) -> None:
            late[files] = partial(write, *arguments)

        monkeypatch.setattr(log_segments, "write_partition_identity", write_later)
        claim(files)

    def sync_and_write_identity(log: PartitionLog) -> SyncedPosition:
        position = sync(log)
        if log._files in late and not log.topic.deleted:
            late.pop(log._files)()
        return position

    monkeypatch.setattr(LogSegments, "claim", claim_without_identity)
    monkeypatch.setattr(PartitionLog, "sync", sync_and_write_identity)
    assert any(fails(seed) for seed in (LATE_IDENTITY_SEED, *range(1, SEEDS_MAX)))
