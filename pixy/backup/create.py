"""A backup of a running cluster.

    1  state: topics, offsets of groups, sinks; then its publications are waited for
    2  begins and ends of all partitions
    3  ranges that no object of the target has, several partitions at a time
    4  the state, and last the manifest

The state is older than the ends, so no offset of a group is beyond the records. Everything that was
acknowledged before the begin is in the backup, and perhaps some of what came later: records behind
the offsets, and epochs of sinks that may be published again.

Whatever breaks it, the objects that are there stay, and the next backup does not fetch them again:
it goes on with the last one, or adds to it.

A partition's records are one log, so objects of one backup fit those of another. What retention
removes meanwhile is left out: the records of a partition begin later then. Memory: some answers for
each of `streams`, and for targets that take an object as a whole, that object.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from pixy.backup.batch_run import BatchRun
from pixy.backup.manifest import BackedUpPartition, BackedUpTopic, Manifest, encode_manifest
from pixy.backup.object_names import (
    RangeName,
    backup_id,
    cluster_folder,
    manifest_path,
    partition_folder,
    range_name,
    state_path,
)
from pixy.backup.ranges import cover
from pixy.backup.source import BegunLater, ClusterSource, Stopped, TopicGone, WantedRange, joined
from pixy.backup.target import Target, put
from pixy.cluster import ExportedRecord, StateToFound
from pixy.copies import TokenBucket
from pixy.errors import CorruptData, FailedPrecondition, NotFound, Unavailable
from pixy.proto.pixy_cluster_pb2 import ExportStateResponse
from pixy.proto.state_pb2 import TopicRecord
from pixy.records import OffsetRange, TopicPartition, crc32c

OBJECT_BYTES = 16 << 20


class BackupProgress:
    """Numbers of a backup under way; those of a finished one stay.

    Attributes:
        total: records that are missing in the target.
        fetched: those of them that were fetched.
        fetched_bytes: bytes of their batches.
        reused_bytes: bytes of objects that were there.
    """

    def __init__(self) -> None:
        self.total = self.fetched = self.fetched_bytes = self.reused_bytes = 0
        self._lock = threading.Lock()

    def add(self, records: int, size: int) -> None:
        """Count fetched batches."""
        with self._lock:
            self.fetched += records
            self.fetched_bytes += size


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """Options of a backup.

    Attributes:
        topics: to back up; empty for all.
        streams: partitions at a time.
        bytes_per_second: limit of what is fetched, 0 for none.
        object_bytes: size at which an object ends.
    """

    topics: Sequence[str] = ()
    streams: int = 4
    bytes_per_second: int = 64 << 20
    object_bytes: int = OBJECT_BYTES


@dataclass(slots=True)
class _PartitionOnItsWay:
    """A partition on its way to the target: offsets, and the objects that are there."""

    topic: str
    topic_id: bytes
    number: int
    begin: int
    end: int
    folder: str
    there: list[RangeName] = field(default_factory=list)


class Backup:
    """One backup.

    Args:
        source: the cluster.
        target: where it goes.
        options: see there.
        now_ms: the time, in milliseconds since the Unix epoch.
        progress: counts.
    """

    def __init__(
        self,
        source: ClusterSource,
        target: Target,
        options: BackupOptions,
        now_ms: Callable[[], int],
        progress: BackupProgress,
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._id = backup_id(now_ms())
        self._progress = progress
        rate = options.bytes_per_second
        self._bucket = TokenBucket(rate, rate / 4) if rate else None
        self._bucket_lock = threading.Lock()
        # Ids of topics that were deleted meanwhile.
        self._gone: set[bytes] = set()

    def run(self) -> Manifest:
        """Back up; the manifest is durable on return.

        Raises:
            NotFound: there is no such topic.
            Unavailable: cluster or target do not answer; what is there is used by the next one.
            FailedPrecondition: the cluster is of Kafka, or an older release.
            CorruptData: a node gives damaged records.
        """
        pieces = self._source.state()
        state = joined(pieces)
        topics = self._topics(state)
        ends = self._source.ends(
            [TopicPartition(topic.name, number) for topic in topics for number in range(_count(topic))]
        )
        self._source.look_for_replicas()
        # Ends are by name: those of a later topic of the same name would not be these.
        ids = self._source.topic_ids()
        topics = [topic for topic in topics if ids.get(topic.name) == topic.topic_id]
        partitions = self._partitions(state.cluster_id, topics, ends)
        self._fetch_all(partitions)
        found = tuple(self._finished(topics, partitions))
        path = state_path(state.cluster_id, self._id, pieces)
        manifest = Manifest(
            self._id,
            state.cluster_id,
            state.version,
            state.feature_level,
            state.time_ms,
            path,
            found,
        )
        put(self._target, path, pieces)
        self._commit(manifest)
        return manifest

    @property
    def left_out(self) -> int:
        """Number of topics that were deleted meanwhile."""
        return len(self._gone)

    def _topics(self, state: ExportStateResponse) -> list[TopicRecord]:
        known = StateToFound(ExportedRecord(r.state_group, r.key, r.value) for r in state.records).topics
        for name in self._options.topics:
            if name not in known:
                raise NotFound(f"unknown topic {name}")
        wanted = set(self._options.topics or known)
        return [known[name] for name in sorted(known) if name in wanted]

    def _partitions(
        self,
        cluster_id: bytes,
        topics: Sequence[TopicRecord],
        ends: Mapping[TopicPartition, OffsetRange],
    ) -> list[_PartitionOnItsWay]:
        """All partitions, and what the target has of them."""
        there = self._objects(cluster_id)
        found = []
        for topic in topics:
            for number in range(_count(topic)):
                offsets = ends[TopicPartition(topic.name, number)]
                folder = partition_folder(cluster_id, topic.topic_id, number)
                found.append(
                    _PartitionOnItsWay(
                        topic.name,
                        topic.topic_id,
                        number,
                        offsets.begin,
                        offsets.end,
                        folder,
                        there.get(folder, []),
                    )
                )
        return found

    def _objects(self, cluster_id: bytes) -> dict[str, list[RangeName]]:
        """Whole objects by folder."""
        found: dict[str, list[RangeName]] = {}
        for path, size in self._target.sizes(cluster_folder(cluster_id)).items():
            folder, _, text = path.rpartition("/")
            name = range_name(text)
            if name is not None and name.size == size:
                found.setdefault(folder, []).append(name)
        return found

    # --- records ----------------------------------------------------------------------------------

    def _fetch_all(self, partitions: Sequence[_PartitionOnItsWay]) -> None:
        """Fetch what is missing; the first failure ends all."""
        missing = []
        for each in partitions:
            covered = cover(each.begin, each.end, each.there)
            self._progress.reused_bytes += sum(name.size for name in covered.objects)
            self._progress.total += sum(end - begin for begin, end in covered.missing)
            if covered.missing:
                missing.append(each)
        pool = ThreadPoolExecutor(self._options.streams, "backup")
        work: list[Future[None]] = [pool.submit(self._fetch_partition, each) for each in missing]
        try:
            for done in as_completed(work):
                done.result()
        except BaseException:
            self._source.stopped.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _fetch_partition(self, partition: _PartitionOnItsWay) -> None:
        while partition.topic_id not in self._gone:
            missing = cover(partition.begin, partition.end, partition.there).missing
            if not missing:
                return
            try:
                for begin, end in missing:
                    self._fetch_range(partition, begin, end)
            except BegunLater as later:
                partition.begin = later.offset
            except TopicGone:
                self._gone.add(partition.topic_id)

    def _fetch_range(self, partition: _PartitionOnItsWay, begin: int, end: int) -> None:
        """Fetch a range into objects; those that are whole stay if it breaks."""
        wanted = WantedRange(
            TopicPartition(partition.topic, partition.number), partition.topic_id, begin, end
        )
        run = BatchRun(begin)
        fetched = self._source.fetch(wanted)
        while run.offset < end:
            with _NewObject(self._target, partition.folder) as new:
                first = run.offset
                for given in fetched:
                    before = run.offset
                    taken = run.take(given.batches, end)
                    size = sum(map(len, taken))
                    for batches in _joined(taken):
                        new.write(batches)
                    self._progress.add(run.offset - before, size)
                    self._pace(size)
                    if new.size >= self._options.object_bytes:
                        break
                if run.offset == first:
                    raise CorruptData(f"the records from offset {first} on are told of, and not given")
                name = RangeName(run.first if first == begin else first, run.offset, new.size, new.crc)
                new.commit(str(name))
            partition.there.append(name)

    def _pace(self, size: int) -> None:
        if self._bucket is None:
            return
        with self._bucket_lock:
            wait_s = self._bucket.take(size, time.monotonic())
        if self._source.stopped.wait(wait_s):
            raise Stopped

    # --- commit -----------------------------------------------------------------------------------

    def _finished(
        self, topics: Sequence[TopicRecord], partitions: Sequence[_PartitionOnItsWay]
    ) -> Iterator[BackedUpTopic]:
        for topic in topics:
            if topic.topic_id in self._gone:
                continue
            found = []
            for each in partitions:
                if each.topic_id == topic.topic_id:
                    covered = cover(each.begin, each.end, each.there)
                    assert not covered.missing, (each.topic, each.number, covered.missing)
                    found.append(BackedUpPartition(each.number, each.begin, each.end, tuple(covered.objects)))
            yield BackedUpTopic(topic.name, topic.topic_id, dict(topic.config), tuple(found))

    def _commit(self, manifest: Manifest) -> None:
        """Make a backup of the objects, if all are there: others may have been removed."""
        self._target.flush()
        sizes = self._target.sizes(cluster_folder(manifest.cluster_id))
        for path in manifest.paths():
            name = range_name(path.rpartition("/")[2])
            if name is not None and sizes.get(path) != name.size:
                raise Unavailable(f"{path} was removed meanwhile from {self._target.url}: back up again")
        path = manifest_path(manifest.id)
        if path in self._target.sizes("backups"):
            raise FailedPrecondition(f"{self._target.url} has a backup {manifest.id} already")
        put(self._target, path, [encode_manifest(manifest)])
        self._target.flush()


class _NewObject:
    """An object with size and checksum, which is given up unless it is committed."""

    def __init__(self, target: Target, folder: str) -> None:
        self._writer = target.begin(folder)
        self.size = self.crc = 0

    def __enter__(self) -> "_NewObject":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.abandon()

    def write(self, piece: memoryview) -> None:
        """Add bytes."""
        self._writer.write(piece)
        self.crc = crc32c(piece, self.crc)
        self.size += len(piece)

    def commit(self, name: str) -> None:
        """As `ObjectWriter.commit`."""
        self._writer.commit(name)


def _joined(batches: Sequence[memoryview]) -> list[memoryview]:
    """Batches that follow each other in one buffer as one piece."""
    if len(batches) < 2:
        return list(batches)
    return [memoryview(b"".join(batches))]


def _count(topic: TopicRecord) -> int:
    return len(topic.raft_groups)
