"""A backup becomes the data directory of a node, the only one of a new cluster.

Every object is compared with its checksum, and every batch with its own and with the one before,
before a start takes the directory (`cluster.FoundedNode`). Objects are read by other threads while
the ones before are written.

With `before_ms` each partition ends before its first record of that time or later, and consumer
groups at that end at most. Sinks are left out: they may have published what is cut.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pixy.backup.batch_run import BatchRun, Buffer, TimeCut
from pixy.backup.manifest import BackedUpPartition, BackedUpTopic, Manifest
from pixy.backup.object_names import partition_folder
from pixy.backup.target import Target, read_object
from pixy.backup.upkeep import read_state
from pixy.cluster import FEATURE_LEVEL, FoundedCluster, FoundedNode, StateToFound, Topic
from pixy.errors import CorruptData, DataDirectoryError, InvalidTopic, NotFound
from pixy.records import check_topic_name
from pixy.storage import Disk, MakeWorker

_AHEAD = 2
"""Objects that are read before they are written."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Options of a restore.

    Attributes:
        version: release of the node.
        now_ms: the time, in milliseconds since the Unix epoch.
        topics: to restore; empty for all.
        before_ms: time of the first records that are left out; None for none.
    """

    version: str
    now_ms: int
    topics: Sequence[str] = ()
    before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored cluster, and how much it has."""

    cluster_id: bytes
    topics: int
    partitions: int
    records: int
    groups: int


class Restore:
    """One restore. Blocks.

    Args:
        target, manifest: the backup.
        disk: of the directory.
        directory: see `FoundedNode`.
        options: see there.
        random_bytes: makes ids and secrets.
        progress: told of the bytes of each object.
    """

    def __init__(
        self,
        target: Target,
        manifest: Manifest,
        disk: Disk,
        directory: Path,
        options: RestoreOptions,
        random_bytes: Callable[[int], bytes],
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._target = target
        self._manifest = manifest
        self._disk = disk
        self._directory = directory
        self._options = options
        self._random_bytes = random_bytes
        self._progress = progress

    def run(self, make_worker: MakeWorker) -> Restored:
        """Restore; durable on return. Runs an event loop of its own.

        Args:
            make_worker: makes the thread that writes the journal, which is stopped on return.

        Raises:
            DataDirectoryError: the directory has other files, or the disk is full or broken.
            CorruptData: the backup is damaged.
            NotFound: it does not have a topic.
            Unavailable: the target cannot be read now.
        """
        topics = self._topics()
        state = read_state(self._target, self._manifest)
        made = self._check(state, topics)
        try:
            node = FoundedNode(self._disk, self._directory, self._random_bytes)
            try:
                return self._restore(node, state, topics, made, make_worker)
            finally:
                node.close()
        except OSError as error:
            raise DataDirectoryError(f"{self._directory} cannot be written: {error}") from error

    def _topics(self) -> list[BackedUpTopic]:
        manifest, wanted = self._manifest, self._options.topics
        if manifest.feature_level > FEATURE_LEVEL:
            raise DataDirectoryError(
                f"backup {manifest.id} is of a cluster with feature level {manifest.feature_level}, this release knows "
                f"{FEATURE_LEVEL}: restore it with pixy {manifest.version}"
            )
        known = {topic.topic for topic in manifest.topics}
        for name in wanted:
            if name not in known:
                raise NotFound(f"backup {manifest.id} has no topic {name}")
        return [topic for topic in manifest.topics if not wanted or topic.topic in wanted]

    def _check(self, state: StateToFound, topics: Sequence[BackedUpTopic]) -> dict[str, Topic]:
        """The topics of the state, which are those of the manifest."""
        made = {topic.name: topic for topic in state.made_topics()}
        for topic in topics:
            found = made.get(topic.topic)
            try:
                check_topic_name(topic.topic)  # it becomes a directory
            except InvalidTopic as error:
                raise CorruptData(f"backup {self._manifest.id}: {error}") from error
            if (
                found is None
                or found.topic_id != topic.topic_id
                or len(found.raft_groups) != len(topic.partitions)
            ):
                raise CorruptData(f"{self._manifest.state} does not have topic {topic.topic} as the manifest")
        return made

    def _restore(
        self,
        node: FoundedNode,
        state: StateToFound,
        topics: Sequence[BackedUpTopic],
        made: dict[str, Topic],
        make_worker: MakeWorker,
    ) -> Restored:
        ends: dict[tuple[bytes, int], int] = {}
        records = 0
        partitions = [(topic, each) for topic in topics for each in topic.partitions]
        with ThreadPoolExecutor(_AHEAD, "restore") as pool:
            objects = self._objects(pool, partitions)
            for topic, each in partitions:
                end = self._restore_partition(node, made[topic.topic], each, objects)
                ends[topic.topic_id, each.partition] = end
                records += max(0, end - each.begin)
        options = self._options
        founded = FoundedCluster(
            node.secret, options.version, options.now_ms, ends, keeps_sinks=options.before_ms is None
        )
        try:
            asyncio.run(node.finish(state, founded, make_worker))
        except ValueError as error:
            raise CorruptData(f"{self._manifest.state}: {error}") from error
        groups = len({each.group for each in state.offsets() if _is_of(each.offset.topic_id, topics)})
        return Restored(node.cluster_id, len(topics), len(partitions), records, groups)

    def _objects(
        self, pool: ThreadPoolExecutor, partitions: Sequence[tuple[BackedUpTopic, BackedUpPartition]]
    ) -> Iterator[bytes]:
        """The objects of all partitions in order, some of them read ahead."""
        paths = (
            f"{partition_folder(self._manifest.cluster_id, topic.topic_id, each.partition)}/{name}"
            for topic, each in partitions
            for name in each.objects
        )
        ahead: deque[Future[bytes]] = deque()
        try:
            for path in paths:
                ahead.append(pool.submit(read_object, self._target, path))
                if len(ahead) > _AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for each in ahead:
                each.cancel()

    def _restore_partition(
        self, node: FoundedNode, topic: Topic, partition: BackedUpPartition, objects: Iterator[bytes]
    ) -> int:
        """Write the records of a partition; returns its end."""
        run, before_ms = BatchRun(partition.begin), self._options.before_ms
        cut = None if before_ms is None else TimeCut(before_ms)
        log = node.write_partition(topic, partition.partition, partition.begin)
        for name in partition.objects:
            data = next(objects)
            try:
                batches = run.take(data, partition.end)
            except CorruptData as error:
                raise CorruptData(
                    f"{topic.name}-{partition.partition}: object {name} is damaged: {error}"
                ) from error
            kept: Sequence[Buffer] = batches if cut is None else list(cut.take(batches))
            if kept and not (cut is not None and cut.end is not None and cut.end <= partition.begin):
                log.write(kept, run.first)
            self._progress(len(data))
        if run.offset != partition.end:
            raise CorruptData(
                f"{topic.name}-{partition.partition} has records up to offset {run.offset}, expected {partition.end}"
            )
        end = partition.end if cut is None or cut.end is None else max(cut.end, partition.begin)
        log.end(end, run.epoch)
        return end


def _is_of(topic_id: bytes, topics: Sequence[BackedUpTopic]) -> bool:
    return any(topic.topic_id == topic_id for topic in topics)
