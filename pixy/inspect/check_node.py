"""Checks the whole data directory of a stopped node for `pixy storage check`, and changes nothing
but, if it is asked to, the marks of damaged partitions.

`storage` knows the single files; this module checks their consistency. The directory has one owner.
The journal continues where each partition and each state group ends. Every partition belongs to a
topic of the checkpoints and the journal. No consumer group has acked more than the log has.

`storage.partition_directory` decides what a start does with each directory below `topics`. A
directory that it removes is a warning here; one that prevents the start, or keeps a partition from
being ready, is damage.

Nothing is judged that other damage makes doubtful: without a whole journal, the expected files are
unknown.
"""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pixy.cluster import (
    FIRST_GROUPS_GROUP,
    METADATA_GROUP,
    RESTORING,
    SINKS_GROUP,
    WHY_RESTORING,
    GroupsState,
    MetadataState,
    SinksState,
    check_journal_reaches,
    check_reset,
    partition_command,
    pieces_of,
    publication_in,
    restore_state,
    takes_publication,
)
from pixy.copies import is_due
from pixy.entry_ids import LogPosition
from pixy.errors import CorruptData, DataDirectoryError, VoidEntry
from pixy.inspect.check_checkpoints import check_checkpoints
from pixy.inspect.check_journal import CheckedEntry, CheckedJournal, check_journal
from pixy.inspect.check_kafka_stages import check_kafka_stages, is_kafka_stages_directory
from pixy.inspect.check_partition import check_partition
from pixy.inspect.check_pieces import check_pieces
from pixy.inspect.check_staging import check_staging
from pixy.inspect.replayed_entries import ReplayedEntries, replay
from pixy.inspect.report import Report
from pixy.multiraft import ADVICE, FIRST_PARTITION_GROUP, conf_state_of, why_never_a_member
from pixy.proto.state_pb2 import AppliedPosition, OffsetRecord, PartitionIdentity
from pixy.staging import PieceKey
from pixy.storage import (
    DirectoryKind,
    Disk,
    EntryType,
    File,
    KnownPartitions,
    copy_directory,
    judge_partition_directory,
    mark_directory,
    read_identity,
)

_FILES = ("clock", "identity", "lock", "reserve")
_DIRECTORIES = ("journal", "pieces", "staging", "state", "topics")
_KAFKA = "kafka"
_GROUP_KEY = b"group\0"
_ADVICE = "with --mark, the next start fetches the partition from another node"


def node_directories(disk: Disk, directory: Path) -> list[Path]:
    """Directories to check at a path: of a node, of stages for Kafka, or all in a `data_dir`.

    Raises:
        DataDirectoryError: there is none, or it cannot be read.
    """
    try:
        names = disk.names(directory)
    except NotADirectoryError as error:
        raise DataDirectoryError(f"{directory} is not a directory") from error
    if not names:
        missing = "is empty" if directory.is_dir() else "does not exist"
        raise DataDirectoryError(f"{directory} {missing}: there is no node in it")
    found = _of_cluster(directory)
    if found:
        return found
    found = [each for name in names for each in _of_cluster(directory / name)]
    if not found:
        raise DataDirectoryError(
            f"{directory} has no node in it: neither identity, lock, journal, state nor topics, nor stages for a cluster of Kafka, "
            "here or one level below"
        )
    return found


def _of_cluster(directory: Path) -> list[Path]:
    """Data directories in the directory of a cluster: of a node, of stages for Kafka, or of both
    after the kind of the cluster was changed.
    """
    if is_kafka_stages_directory(directory):
        return [directory]
    return [directory] * _is_node(directory) + [directory / _KAFKA] * is_kafka_stages_directory(
        directory / _KAFKA
    )


def _is_node(directory: Path) -> bool:
    if any((directory / name).is_file() for name in _FILES):
        return True
    inner = [directory / name for name in _DIRECTORIES]
    # A cluster may be called `journal`.
    return any(path.is_dir() and not any((path / name).is_file() for name in _FILES) for path in inner)


def check_directory(disk: Disk, directory: Path) -> Report:
    """Check one of `node_directories`, whatever it is. Blocks; raises as `check_node`."""
    if not is_kafka_stages_directory(directory):
        return check_node(disk, directory)
    report = Report(directory)
    with _locked(disk, directory):
        check_kafka_stages(disk, directory, report)
    return report


def check_node(disk: Disk, directory: Path) -> Report:
    """Check everything that a stopped node has. Blocks.

    Args:
        disk: the file system; nothing of it is changed if it is a `ReadOnlyDisk`.

    Raises:
        DataDirectoryError: a daemon uses the directory, or it may not be read.
    """
    check = _NodeCheck(disk, directory)
    with _locked(disk, directory):
        check.run()
    return check.report


def mark_damaged(disk: Disk, report: Report) -> None:
    """Mark partitions that a check has found damaged, and have replicas on other nodes: the next
    start fetches them from there. Marks of the others are removed. Blocks.

    Raises:
        DataDirectoryError: a daemon uses the directory, or it may not be written.
    """
    with _locked(disk, report.directory):
        for directory, found in report.marks.items():
            mark_directory(disk, directory, found)


@contextmanager
def _locked(disk: Disk, directory: Path) -> Iterator[None]:
    try:
        lock = _lock(disk, directory)
        try:
            yield
        finally:
            if lock is not None:
                lock.close()
    except OSError as error:
        raise DataDirectoryError(f"{error.filename or directory} cannot be used: {error.strerror}") from error


def _lock(disk: Disk, directory: Path) -> File | None:
    try:
        lock = disk.lock(directory / "lock")
    except FileNotFoundError:
        return None  # every daemon makes it, so none is there
    if lock is None:
        raise DataDirectoryError(
            f"data directory {directory} is in use by another process: stop the daemon first"
        )
    return lock


@dataclass(slots=True)
class _StateGroup:
    """A replayed state group: its state machine, and `whole` unless entries are missing."""

    machine: MetadataState | GroupsState | SinksState
    whole: bool


class _Partition(NamedTuple):
    """A partition of a topic, with the identity that its directory should have.

    `is_shared` if there are replicas on other nodes.
    """

    name: str
    identity: PartitionIdentity
    is_shared: bool


class _NodeCheck:
    """One pass over a node's directory, in the order of its recovery."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self.report = Report(directory)
        self._journal = CheckedJournal()
        self._cluster_id = b""
        # By topic id and number: existing partitions, and the offset behind the last record of
        # each, replayed records included.
        self._known: set[tuple[bytes, int]] = set()
        self._ends: dict[tuple[bytes, int], int] = {}
        # Pieces of replicated stages that are whole.
        self._pieces: set[PieceKey] = set()
        # The last durable publication of each partition; later ones need their stages.
        self._published: dict[tuple[bytes, int], int] = {}

    def run(self) -> None:
        names = self._disk.names(self._directory)
        owner = self._identity(names)
        self._journal = check_journal(self._disk, self._directory / "journal", owner, self.report)
        self._not_lost(names)
        metadata = self._state_group(METADATA_GROUP, "metadata", MetadataState())
        assert isinstance(metadata.machine, MetadataState)
        count = metadata.machine.groups_count or 1
        groups = [
            self._state_group(FIRST_GROUPS_GROUP + number, f"groups-{number}", GroupsState())
            for number in range(count)
        ]
        sinks = self._state_group(SINKS_GROUP, "sinks", SinksState())
        self._foreign_states({"metadata", "sinks", *(f"groups-{number}" for number in range(count))})
        if metadata.whole:
            self._raft_groups(metadata.machine)
        self._pieces = check_pieces(self._disk, self._directory / "pieces", self._cluster_id, self.report)
        self._partitions(metadata)
        staged = check_staging(self._disk, self._directory / "staging", self._cluster_id, self.report)
        if sinks.whole and metadata.whole:
            assert isinstance(sinks.machine, SinksState)
            self._publications(sinks.machine, staged)
        for number, group in enumerate(groups):
            if group.whole and metadata.whole and self._journal.whole:
                assert isinstance(group.machine, GroupsState)
                elsewhere = _elsewhere(metadata.machine, owner[1] if owner else 0)
                self._committed(f"groups-{number}", group.machine, elsewhere)
        for name in names:
            if name == RESTORING:
                self.report.damaged("restore", self._directory / name, WHY_RESTORING)
            elif name == "identity.part":
                self.report.warn("identity", self._directory / name, "left from a crash at the first start")
            elif name not in _FILES + _DIRECTORIES and not (
                name == _KAFKA and is_kafka_stages_directory(self._directory / name)
            ):
                self.report.warn("file", self._directory / name, "does not belong here")

    def _identity(self, names: list[str]) -> tuple[bytes, int] | None:
        path = self._directory / "identity"
        if path.name not in names:
            if any(name in names for name in _DIRECTORIES):
                self.report.damaged("identity", path, "missing: the next start is refused")
            else:
                self.report.warn("identity", path, "not written yet: the first start did not come that far")
            return None
        try:
            identity = read_identity(self._disk, path)
        except (CorruptData, DataDirectoryError, DecodeError) as error:
            self.report.damaged("identity", path, str(error).removeprefix(f"{path} "))
            return None
        self._cluster_id = identity.cluster_id
        self.report.bytes += path.stat().st_size
        self.report.add("identity", path, f"node {identity.node_id} of cluster {identity.cluster_id.hex()}")
        return identity.cluster_id, identity.node_id

    def _not_lost(self, names: list[str]) -> None:
        """Report a lost journal.

        A node writes it before all others, and never removes its newest file.
        """
        lost = self._journal.whole and not self._journal.files
        if lost and any(name in names for name in ("topics", "state", "staging", "pieces")):
            self._journal.whole = False
            self.report.damaged(
                "journal", self._directory / "journal", "no journal files: the next start is refused"
            )

    # --- state groups -----------------------------------------------------------------------------

    def _state_group(
        self, raft_group: int, name: str, machine: MetadataState | GroupsState | SinksState
    ) -> _StateGroup:
        index = 0
        group = _StateGroup(machine, self._journal.whole)
        try:
            index = self._restore(raft_group, name, machine)
            entries = self._entries_after(name, raft_group, index)
            group.whole &= entries is not None
            for entry in entries or ():
                if entry.entry_type is EntryType.COMMAND:
                    result = machine.apply(entry.command, entry.term)
                    if isinstance(result, VoidEntry):
                        self.report.warn("state", name, f"entry {entry.index}: {result}")
        except (CorruptData, DataDirectoryError) as error:
            group.whole = self._journal.whole = False
            self.report.damaged("state", name, f"{error}: the next start is refused")
            return group
        except (DecodeError, UnicodeDecodeError, AssertionError) as error:
            group.whole = False
            self.report.damaged("state", name, f"a command or record cannot be applied: {error}")
            return group
        found = f"checkpoint up to entry {index}, " if index else ""
        self.report.add("state", name, f"{found}{len(entries or ())} entries in the journal behind it")
        return group

    def _restore(self, raft_group: int, name: str, machine: MetadataState | GroupsState | SinksState) -> int:
        """Restore a state machine from its newest checkpoint; returns the last entry in it.

        Raises:
            CorruptData: the journal contradicts the checkpoint, or has a log reset behind it.
        """
        checkpoint = check_checkpoints(self._disk, self._directory / "state" / name, self.report)
        epoch, index, has_peers = 0, 0, False
        if checkpoint is not None:
            epoch, index = checkpoint.id
            group_state = restore_state(name, machine, checkpoint.records)
            has_peers = len(conf_state_of(group_state.configuration).members) > 1
        if self._journal.whole:
            found = self._journal.group(raft_group)
            check_reset(name, index, found.reset)
            try:
                check_journal_reaches(name, LogPosition(epoch, index), found.end, found.term(index))
            except CorruptData:
                if not has_peers:
                    raise
                ahead = f"checkpoint up to entry {index}, which the journal does not have"
                self.report.warn("state", name, f"{ahead}: the next start writes the missing log reset")
        return index

    def _entries_after(self, name: str, raft_group: int, index: int) -> list[CheckedEntry] | None:
        """The entries of a raft group behind `index`; None, and a finding, if any are missing."""
        try:
            return self._journal.group(raft_group).entries_after(raft_group, index)
        except CorruptData as error:
            if self._journal.whole:
                kind = "partition" if raft_group >= FIRST_PARTITION_GROUP else "state"
                self.report.damaged(kind, name, str(error))
            return None

    def _foreign_states(self, known: set[str]) -> None:
        for name in self._disk.names(self._directory / "state"):
            if name not in known and self._journal.whole:
                self.report.warn("file", self._directory / "state" / name, "does not belong here")

    def _raft_groups(self, metadata: MetadataState) -> None:
        """Check that each raft group in the journal was created, and that its members were in the
        cluster.
        """
        # Metadata may lag behind other groups if other nodes decide.
        state = self._journal.group(METADATA_GROUP).hard_state
        is_current = state is None or len(conf_state_of(state).members) < 2
        for raft_group, group in self._journal.groups.items():
            if raft_group >= metadata.next_raft_group:
                found = f"records of raft group {raft_group}, but the entry that created it is missing"
                self.report.damaged("journal", self._directory / "journal", found)
            reason = why_never_a_member(group.hard_state, metadata.next_node_id)
            if reason and (is_current or raft_group == METADATA_GROUP):
                found = f"raft group {raft_group}: {reason}: the next start is refused"
                self.report.damaged("journal", self._directory / "journal", found, ADVICE)

    # --- partitions -------------------------------------------------------------------------------

    def _partitions(self, metadata: _StateGroup) -> None:
        assert isinstance(metadata.machine, MetadataState)
        topics = self._directory / "topics"
        judged = metadata.whole and self._journal.whole and bool(self._cluster_id)
        partitions = {each.name: each for each in self._partitions_of(metadata.machine)}
        live = {name: each.identity for name, each in partitions.items()}
        self._known = {(identity.topic_id, identity.partition) for identity in live.values()}
        known = KnownPartitions(live, self._cluster_id, metadata.machine.next_raft_group)
        for name in [*live, *(name for name in self._disk.names(topics) if name not in live)]:
            path, owner = topics / name, partitions.get(name)
            if judged and path.exists() and not self._may_be_used(path, known):
                continue
            if owner is not None:
                self._partition(path, owner)
            elif not judged and path.is_dir():
                check_partition(self._disk, path, None, None, self.report)

    def _partitions_of(self, metadata: MetadataState) -> list[_Partition]:
        return [
            _Partition(
                f"{topic.name}-{number}",
                PartitionIdentity(
                    cluster_id=self._cluster_id,
                    topic_id=topic.topic_id,
                    partition=number,
                    raft_group=raft_group,
                ),
                any(len(replicas) > 1 for replicas in topic.replicas[number : number + 1]),
            )
            for topic in metadata.topics.values()
            for number, raft_group in enumerate(topic.raft_groups)
        ]

    def _may_be_used(self, directory: Path, known: KnownPartitions) -> bool:
        """True if a directory has the files of its partition, as far as can be seen; reports
        anything else.
        """
        try:
            found = judge_partition_directory(self._disk, directory, known)
        except DataDirectoryError as error:
            self.report.damaged("identity", directory / "identity", str(error))
            return False
        reason = found.reason.removeprefix(f"{directory} ").removeprefix(f"{directory}/")
        match found.kind:
            case DirectoryKind.OWN:
                return True
            case DirectoryKind.NOT_READY:
                self.report.damaged("partition", directory.name, f"{reason}: the partition is not ready")
                return found.nameless
            case DirectoryKind.REFUSED:
                self.report.damaged("partition", directory.name, f"{reason}: the next start is refused")
            case left:
                self.report.warn("partition", directory.name, f"{left.value} by the next start")
        return found.kind is DirectoryKind.UNFINISHED

    def _partition(self, directory: Path, partition: _Partition) -> None:
        identity = partition.identity
        key = (identity.topic_id, identity.partition)
        applied = self._journal.group(identity.raft_group).applied
        self._published[key] = applied.publication if applied else 0
        entries = self._entries_after(directory.name, identity.raft_group, applied.index if applied else 0)
        replayed: ReplayedEntries | None = None
        if entries is not None and self._journal.whole:
            replayed = replay(applied, entries)
            self.report.records += replayed.records
            self._ends[key] = (applied.end_offset if applied else 0) + replayed.records
            self._check_pieces(directory.name, identity.raft_group, entries, self._published[key])
        if self._is_replaced(directory, identity.raft_group, applied):
            directory = copy_directory(directory.parent, identity.raft_group)
        advice = _ADVICE if partition.is_shared else ""
        damage = check_partition(self._disk, directory, applied, replayed, self.report, advice)
        if partition.is_shared and directory.exists():
            self.report.marks[directory] = damage

    def _is_replaced(self, directory: Path, raft_group: int, applied: AppliedPosition | None) -> bool:
        """True if the next start replaces a directory by the copy of its partition."""
        try:
            due = is_due(self._disk, directory.parent, raft_group, applied)
        except DataDirectoryError as error:
            self.report.damaged("partition", directory.name, f"{error}: the next start is refused")
            return False
        if due:
            self.report.add(
                "partition", directory.name, f"its copy, {raft_group}-copy, takes its place at the next start"
            )
        return due

    def _check_pieces(
        self, name: str, raft_group: int, entries: Iterable[CheckedEntry], publication: int
    ) -> None:
        """Check that the pieces of publications that the next start applies again are there."""
        for entry in entries:
            if entry.entry_type is not EntryType.COMMAND:
                continue
            decoded = partition_command(entry.command)
            if isinstance(decoded, VoidEntry):
                self.report.warn("partition", name, f"entry {entry.index}: {decoded}")
            command = publication_in(entry.command)
            if not takes_publication(command, publication):
                continue
            publication = command.publication
            missing = sum(ref.key not in self._pieces for ref in pieces_of(command, raft_group))
            if missing:
                found = (
                    f"publication {publication} needs {missing} pieces that are missing or damaged: not ready"
                )
                self.report.damaged("partition", name, found)

    def _publications(self, sinks: SinksState, staged: dict[tuple[str, str], bool]) -> None:
        """Check that unfinished publications still have their stages."""
        for publication in sinks.publications.values():
            waiting = [
                f"{part.topic}-{part.partition}"
                for part in publication.parts
                if self._published.get((part.topic_id, part.partition), publication.number)
                < publication.number
            ]
            missing = [
                stage_id
                for stage_id in (() if publication.stages else publication.stage_ids)
                if not staged.get((publication.sink_id, stage_id))
            ]
            name = f"publication {publication.number} of sink {publication.sink_id}"
            if waiting and missing:
                found = (
                    f"{name} needs stages that are missing or damaged: {', '.join(missing)}; {', '.join(waiting)} will not "
                    "be ready"
                )
                self.report.damaged("state", "sinks", found)
            else:
                self.report.add("state", "sinks", f"{name} is not finished: the next start goes on with it")

    def _committed(self, name: str, groups: GroupsState, elsewhere: Container[tuple[bytes, int]]) -> None:
        """Compare committed offsets with the ends of partitions; what is also `elsewhere` may be
        behind here, or not here at all.
        """
        for key, value in groups.snapshot():
            if key.startswith(_GROUP_KEY):
                continue
            record = OffsetRecord.FromString(value)
            offset = record.offset
            where = f"{offset.topic}-{offset.partition}"
            place = (offset.topic_id, offset.partition)
            end = self._ends.get(place)
            if place not in self._known:
                found = f"group {record.group} has committed offset {offset.offset} of {where}, which no topic has"
                self.report.warn("state", name, found)
            elif end is not None and offset.offset > end and place not in elsewhere:
                found = f"group {record.group} has committed offset {offset.offset} of {where}, which ends at {end}"
                # Only acks prove that there were records: a client may set any offset.
                if offset.handed_out > end:
                    found += f", and had records below {offset.handed_out}"
                    self.report.damaged("state", name, found)
                else:
                    self.report.warn("state", name, f"{found}: a client may have set it")


def _elsewhere(metadata: MetadataState, node_id: int) -> set[tuple[bytes, int]]:
    """Partitions with replicas on other nodes, by topic id and number."""
    return {
        (topic.topic_id, number)
        for topic in metadata.topics.values()
        for number, replicas in enumerate(topic.replicas)
        if any(replica != node_id for replica in replicas)
    }
