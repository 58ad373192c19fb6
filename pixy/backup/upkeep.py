"""Backups of a target: which there are, whether they are whole, and the removal of old ones.

A backup is a manifest, and the objects that it names. Several backups name the same objects; a
removal takes the manifest first, then what no other manifest names.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pixy.backup.batch_run import BatchRun
from pixy.backup.manifest import BackedUpPartition, Manifest, decode_manifest
from pixy.backup.object_names import BACKUPS, DATA, STATE, is_backup_id, manifest_path, partition_folder
from pixy.backup.source import joined
from pixy.backup.target import Target, read_object
from pixy.cluster import ExportedRecord, StateToFound
from pixy.errors import CorruptData, NotFound


@dataclass(frozen=True, slots=True)
class FoundBackups:
    """Backups of a target.

    Attributes:
        backups: the oldest first.
        damaged: manifests that cannot be used, with the reason, by id.
    """

    backups: tuple[Manifest, ...]
    damaged: Mapping[str, str]


def find_backups(target: Target) -> FoundBackups:
    """All backups of a target."""
    backups, damaged = [], {}
    for path in sorted(target.sizes(BACKUPS)):
        name = path.rpartition("/")[2].removesuffix(".json")
        if not is_backup_id(name):
            continue
        try:
            manifest = decode_manifest(target.get(path))
            if manifest.id != name:
                raise CorruptData(f"the manifest of {manifest.id}")
            backups.append(manifest)
        except (CorruptData, NotFound) as error:
            damaged[name] = str(error)
    return FoundBackups(tuple(backups), damaged)


def find_backup(target: Target, backup: str) -> Manifest:
    """A backup by its id; an empty one is the newest.

    Raises:
        NotFound: there is none, or the target has backups of several clusters, and no id is given.
        CorruptData: its manifest is damaged.
    """
    if backup:
        if not is_backup_id(backup):
            raise NotFound(f"{backup} is no id of a backup, which is like 20260131T120000.000Z")
        return decode_manifest(target.get(manifest_path(backup)))
    backups = find_backups(target).backups
    if not backups:
        raise NotFound(f"{target.url} has no backup")
    clusters = {each.cluster_id for each in backups}
    if len(clusters) > 1:
        raise NotFound(f"{target.url} has backups of {len(clusters)} clusters: name one of them by its id")
    return backups[-1]


def partition_batches(
    target: Target, folder: str, partition: BackedUpPartition, run: BatchRun
) -> Iterator[list[memoryview]]:
    """The verified batches of a partition, object by object.

    Args:
        run: at the begin of the partition.

    Raises:
        CorruptData: an object is missing or damaged, or records are.
        Unavailable: an object cannot be read now.
    """
    for name in partition.objects:
        path = f"{folder}/{name}"
        data = read_object(target, path)
        try:
            yield run.take(data, partition.end)
        except CorruptData as error:
            raise CorruptData(f"{path}: {error}") from error
    if run.offset != partition.end:
        raise CorruptData(f"{folder} has records up to offset {run.offset}, expected {partition.end}")


def read_state(target: Target, manifest: Manifest) -> StateToFound:
    """The state of a backup beside the records.

    Raises:
        CorruptData: it is missing or damaged.
        Unavailable: it cannot be read now.
    """
    data = read_object(target, manifest.state)
    try:
        state = joined([data])
        return StateToFound(ExportedRecord(r.state_group, r.key, r.value) for r in state.records)
    except Exception as error:  # of protobuf, which has no common class for all releases
        raise CorruptData(f"{manifest.state}: {error}") from error


def verify_backup(target: Target, manifest: Manifest) -> Iterator[str]:
    """Read a whole backup; yields what is damaged in it."""
    try:
        state = read_state(target, manifest)
        for topic in manifest.topics:
            record = state.topics.get(topic.topic)
            if record is None or record.topic_id != topic.topic_id:
                yield f"{manifest.state} does not have topic {topic.topic}"
            elif len(record.raft_groups) != len(topic.partitions):
                yield (
                    f"{manifest.state} has {len(record.raft_groups)} partitions of topic {topic.topic}, "
                    f"the manifest {len(topic.partitions)}"
                )
    except CorruptData as error:
        yield str(error)
    for topic in manifest.topics:
        for each in topic.partitions:
            folder = partition_folder(manifest.cluster_id, topic.topic_id, each.partition)
            try:
                for _ in partition_batches(target, folder, each, BatchRun(each.begin)):
                    pass
            except CorruptData as error:
                yield str(error)


@dataclass(frozen=True, slots=True)
class Pruning:
    """Backups and objects that are to be removed.

    Attributes:
        backups: ids of the backups.
        objects: paths of the objects that no other backup has.
        size: their bytes.
    """

    backups: tuple[str, ...]
    objects: tuple[str, ...]
    size: int


def plan_pruning(target: Target, backups: Collection[str], *, unfinished: bool) -> Pruning:
    """Objects that go with some backups.

    Args:
        backups: their ids.
        unfinished: with all objects that no backup has, as backups leave that are broken off, or
            are under way.

    Raises:
        NotFound: there is no such backup.
        CorruptData: another manifest is damaged: what it needs is not known.
    """
    found = find_backups(target)
    known = {each.id: each for each in found.backups}
    for backup in backups:
        if backup not in known and backup not in found.damaged:
            raise NotFound(f"{target.url} has no backup {backup}")
    unknown = [each for each in found.damaged if each not in backups]
    if unknown:
        raise CorruptData(
            f"the manifest of {unknown[0]} is damaged, so nobody knows which objects it needs: "
            f"{found.damaged[unknown[0]]}; remove that backup by its id first"
        )
    sizes = {**target.sizes(DATA), **target.sizes(STATE)}
    kept = {path for id, each in known.items() if id not in backups for path in each.paths()}
    if unfinished:
        gone = [path for path in sizes if path not in kept]
    else:
        theirs = {path for id in backups if id in known for path in known[id].paths()}
        gone = [path for path in sizes if path in theirs - kept]
    return Pruning(tuple(sorted(backups)), tuple(gone), sum(sizes[path] for path in gone))


def prune(target: Target, pruning: Pruning, *, unfinished: bool) -> None:
    """Remove backups, and their objects."""
    for backup in pruning.backups:
        target.remove(manifest_path(backup))
    target.flush()
    for path in pruning.objects:
        target.remove(path)
    if unfinished:
        target.remove_parts()
