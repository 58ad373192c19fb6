"""Checks the data directory of a stopped node as a whole, and changes nothing: what `pixy storage check` says.

The files are the business of `storage`; here is what they mean together: whose directory it is, which topics there are by the
checkpoints and the journal, whether the journal goes on where every partition and every state group ends, whether every
partition belongs to a topic, whether consumer groups have not committed more than there is.

What the damage of something else makes doubtful is not judged: behind a damaged journal nobody knows what should be there.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from pixy.cluster.groups import FIRST_GROUPS_GROUP, GroupsState
from pixy.cluster.metadata import FIRST_PARTITION_GROUP, METADATA_GROUP, MetadataState
from pixy.errors import CorruptData, DataDirectoryError
from pixy.proto.state_pb2 import OffsetRecord
from pixy.records import TopicPartition
from pixy.storage import (
    CheckedEntry,
    CheckedJournal,
    Disk,
    EntryType,
    File,
    ReplayedEntries,
    Report,
    check_checkpoints,
    check_journal,
    check_partition,
    read_identity,
)

__all__ = ["check_node", "node_directories"]

_FILES = ("identity", "lock")
_DIRECTORIES = ("journal", "state", "topics")
_PARTITION = re.compile(r"(.+)-(0|[1-9]\d*)")


def node_directories(disk: Disk, directory: Path) -> list[Path]:
    """The node directories that a path stands for: itself, or those in it if it is the `data_dir` of a daemon.

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
    if _is_node(directory):
        return [directory]
    nodes = [directory / name for name in names if _is_node(directory / name)]
    if not nodes:
        raise DataDirectoryError(
            f"{directory} has no node in it: neither identity, lock, journal, state nor topics, here or one level below"
        )
    return nodes


def _is_node(directory: Path) -> bool:
    if any((directory / name).is_file() for name in _FILES):
        return True
    inner = [directory / name for name in _DIRECTORIES]
    # A cluster may be called `journal`.
    return any(path.is_dir() and not any((path / name).is_file() for name in _FILES) for path in inner)


def check_node(disk: Disk, directory: Path) -> Report:
    """Check everything that a stopped node has. Blocks.

    Args:
        disk: the file system; nothing of it is changed if it is a `ReadOnlyDisk`.

    Raises:
        DataDirectoryError: a daemon uses the directory, or it may not be read.
    """
    try:
        lock = _lock(disk, directory)
        try:
            check = _NodeCheck(disk, directory)
            check.run()
            return check.report
        finally:
            if lock is not None:
                lock.close()
    except OSError as error:
        raise DataDirectoryError(f"{error.filename or directory} cannot be read: {error.strerror}") from error


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
    """A state group that was replayed: its machine, and whether it is all there."""

    machine: MetadataState | GroupsState
    whole: bool


class _NodeCheck:
    """One pass over a node's directory, in the order of its recovery."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self.report = Report(directory)
        self._journal = CheckedJournal()
        # Offset behind the last record of each partition, replayed ones included.
        self._ends: dict[TopicPartition, int] = {}
        self._known: set[TopicPartition] = set()

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
        self._foreign_states({"metadata", *(f"groups-{number}" for number in range(count))})
        if metadata.whole:
            self._raft_groups(metadata.machine, count)
        self._partitions(metadata)
        for number, group in enumerate(groups):
            if group.whole and metadata.whole and self._journal.whole:
                assert isinstance(group.machine, GroupsState)
                self._committed(f"groups-{number}", group.machine)
        for name in names:
            if name == "identity.part":
                self.report.warn("identity", self._directory / name, "left from a crash at the first start")
            elif name not in _FILES + _DIRECTORIES:
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
        self.report.bytes += path.stat().st_size
        self.report.add("identity", path, f"node {identity.node_id} of cluster {identity.cluster_id.hex()}")
        return identity.cluster_id, identity.node_id

    def _not_lost(self, names: list[str]) -> None:
        """The journal comes before everything else that a node writes, and its newest file is never removed."""
        if not self._journal.files and ("topics" in names or "state" in names):
            self._journal.whole = False
            self.report.damaged(
                "journal", self._directory / "journal", "no journal files: the next start is refused"
            )

    # --- state groups -----------------------------------------------------------------------------------------------

    def _state_group(self, raft_group: int, name: str, machine: MetadataState | GroupsState) -> _StateGroup:
        checkpoint = check_checkpoints(self._disk, self._directory / "state" / name, self.report)
        index = 0
        group = _StateGroup(machine, self._journal.whole)
        try:
            if checkpoint is not None:
                machine.restore(checkpoint.records)
                index = checkpoint.id.end_offset
            entries = self._entries_after(name, raft_group, index)
            group.whole &= entries is not None
            for entry in entries or ():
                if entry.entry_type is EntryType.COMMAND:
                    machine.apply(entry.command)
        except (DecodeError, UnicodeDecodeError, AssertionError) as error:
            group.whole = False
            self.report.damaged("state", name, f"a command or record cannot be applied: {error}")
            return group
        found = f"checkpoint up to entry {index}, " if index else ""
        self.report.add("state", name, f"{found}{len(entries or ())} entries in the journal behind it")
        return group

    def _entries_after(self, name: str, raft_group: int, index: int) -> list[CheckedEntry] | None:
        """The entries of a raft group behind `index`; None if the first of them is missing, which is reported."""
        entries = self._journal.group(raft_group).entries_after(index)
        if not entries or entries[0].index == index + 1:
            return entries
        if self._journal.whole:
            kind = "partition" if raft_group >= FIRST_PARTITION_GROUP else "state"
            found = f"durable up to entry {index}, but the journal goes on with entry {entries[0].index}"
            self.report.damaged(kind, name, found)
        return None

    def _foreign_states(self, known: set[str]) -> None:
        for name in self._disk.names(self._directory / "state"):
            if name not in known and self._journal.whole:
                self.report.warn("file", self._directory / "state" / name, "does not belong here")

    def _raft_groups(self, metadata: MetadataState, groups_count: int) -> None:
        """Every raft group of the journal was created, and every one that was created has a hard state there."""
        for raft_group in self._journal.groups:
            if raft_group >= metadata.next_raft_group:
                found = f"records of raft group {raft_group}, but the entry that created it is missing"
                self.report.damaged("journal", self._directory / "journal", found)
        created = [METADATA_GROUP, *range(FIRST_GROUPS_GROUP, FIRST_GROUPS_GROUP + groups_count)]
        created += [raft_group for topic in metadata.topics.values() for raft_group in topic.raft_groups]
        missing = [str(each) for each in created if not self._journal.group(each).hard_state]
        if missing and self._journal.files and self._journal.whole:
            found = f"no hard state of raft groups {', '.join(missing)}: written by the next start"
            self.report.warn("journal", self._directory / "journal", found)

    # --- partitions -------------------------------------------------------------------------------------------------

    def _partitions(self, metadata: _StateGroup) -> None:
        assert isinstance(metadata.machine, MetadataState)
        topics = self._directory / "topics"
        known = {
            f"{topic.name}-{number}": (TopicPartition(topic.name, number), raft_group)
            for topic in metadata.machine.topics.values()
            for number, raft_group in enumerate(topic.raft_groups)
        }
        judged = metadata.whole and self._journal.whole
        for name, (partition, raft_group) in known.items():
            self._known.add(partition)
            self._partition(topics / name, partition, raft_group)
        for name in self._disk.names(topics):
            if name in known:
                continue
            if not _PARTITION.fullmatch(name) or not (topics / name).is_dir():
                self.report.warn("file", topics / name, "does not belong here")
            elif not judged:
                check_partition(self._disk, topics / name, None, None, self.report)
            elif any(file.endswith(".log") for file in self._disk.names(topics / name)):
                found = "segments of a partition that no topic has: nobody can read them"
                self.report.damaged("partition", name, found)
            else:
                self.report.warn("partition", name, "no topic has it")

    def _partition(self, directory: Path, partition: TopicPartition, raft_group: int) -> None:
        applied = self._journal.group(raft_group).applied
        entries = self._entries_after(directory.name, raft_group, applied.index if applied else 0)
        replayed: ReplayedEntries | None = None
        if entries is not None and self._journal.whole:
            replayed = ReplayedEntries(len(entries), sum(entry.offsets for entry in entries))
            self.report.records += replayed.records
            self._ends[partition] = (applied.end_offset if applied else 0) + replayed.records
        check_partition(self._disk, directory, applied, replayed, self.report)

    def _committed(self, name: str, groups: GroupsState) -> None:
        for _, value in groups.snapshot():
            record = OffsetRecord.FromString(value)
            offset = record.offset
            where = f"{offset.topic}-{offset.partition}"
            end = self._ends.get(TopicPartition(offset.topic, offset.partition))
            if TopicPartition(offset.topic, offset.partition) not in self._known:
                found = f"group {record.group} has committed offset {offset.offset} of {where}, which no topic has"
                self.report.warn("state", name, found)
            elif end is not None and offset.offset > end:
                found = f"group {record.group} has committed offset {offset.offset} of {where}, which ends at {end}"
                self.report.damaged("state", name, found)
