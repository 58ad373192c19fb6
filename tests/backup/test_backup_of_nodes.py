"""Backups of real nodes in virtual time, under appends, commits and publications, while one of them
is killed; and the nodes that they become.

Three bugs are seeded: ends that are read before the state, publications that are not waited for,
and results of proposals that a new node keeps.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from pixy.backup import Backup, BackupOptions, BackupProgress, Restore, RestoreOptions, open_target
from pixy.backup.source import GivenBatches, WantedRange, joined
from pixy.cluster import ExportedRecord, ExportedState, StateToFound
from pixy.cluster.publications import StagingRouter
from pixy.cluster.unsafe_recovery import founded_node
from pixy.config import StorageConfig
from pixy.errors import DeadlineExceeded, PixyError
from pixy.proto import pixy_cluster_pb2 as pb
from pixy.proto.state_pb2 import AppliedPosition, ProposerRow, SinkRecord
from pixy.records import OffsetCommit, OffsetRange, TopicPartition, read_header
from tests.backup.logs import LogSource, values_in
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import publish_values
from tests.fakes.disk import RecordingDisk
from tests.fakes.waiting import until
from tests.fakes.worker import InlineWorker

pytestmark = pytest.mark.slow

PARTITIONS = 3
SEEDS = range(6)
MORE_SEEDS = range(6, 40)
GROUP, SINK = "group", "sink"
_CALL_S = 5.0
"""A killed node answers nothing any more."""


class History:
    """Answers that clients got.

    Attributes:
        appended: values by place.
        committed: offsets of the group by partition.
        epoch: newest published epoch, -1 before the first.
    """

    def __init__(self) -> None:
        self.appended: dict[tuple[int, int], bytes] = {}
        self.committed: dict[int, int] = {}
        self.epoch = -1

    def copy(self) -> "History":
        other = History()
        other.appended, other.committed = dict(self.appended), dict(self.committed)
        other.epoch = self.epoch
        return other


class TakenSource(LogSource):
    """A cluster as it was taken."""

    def __init__(self, state: list[bytes], topic_id: bytes) -> None:
        super().__init__(PARTITIONS)
        self._state = state
        self.topic_id = topic_id
        self.taken_ends: dict[TopicPartition, OffsetRange] = {}

    def state(self) -> list[bytes]:
        return self._state

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        return self.taken_ends

    def fetch(self, wanted: WantedRange) -> Iterator[GivenBatches]:
        for batch in self.logs[wanted.partition.partition]:
            header = read_header(batch)
            if wanted.begin < header.next_offset <= wanted.end:
                yield GivenBatches(batch, header.next_offset)


def encoded(state: ExportedState) -> bytes:
    answer = pb.ExportStateResponse(
        cluster_id=state.cluster_id, version="1.0", feature_level=state.feature_level, time_ms=state.time_ms
    )
    for name, key, value in state.records:
        answer.records.append(pb.StateRecord(state_group=name, key=key, value=value))
    return answer.SerializeToString()


async def take(asked: ClusterNode, other: ClusterNode, ends_first: bool) -> TakenSource:
    """State, ends and records, as a backup asks for them: each at any node."""
    ranges = await other.backend.offset_ranges("topic") if ends_first else {}
    await asyncio.sleep(0.1)
    state = await asked.backend.export_state()
    source = TakenSource([encoded(state)], asked.node.metadata.topics["topic"].topic_id)
    ranges = ranges or await other.backend.offset_ranges("topic")
    source.taken_ends = {TopicPartition("topic", number): each for number, each in ranges.items()}
    for number, each in ranges.items():
        at = each.begin
        while at < each.end:
            found = await other.fetch(at, partition=number, max_wait=5)
            source.logs[number] += [bytes(batch) for batch in found.batches]
            at = found.next_offset
    return source


class Load:
    """Clients of a cluster, until it is stopped. Calls that fail are repeated with other values."""

    def __init__(self, cluster: NodeCluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._count = 0
        self._ended = False
        self.history = History()
        self.away = 0

    def node(self) -> ClusterNode:
        """Any node that is not away."""
        return self._rng.choice([each for each in self._cluster.nodes.values() if each.number != self.away])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each()) for each in (self._append, self._commit, self._publish)]
        try:
            yield
        finally:
            self._ended = True
            await asyncio.gather(*tasks)

    async def _append(self) -> None:
        while not self._ended:
            self._count += 1
            partition, value = self._rng.randrange(PARTITIONS), b"value-%d" % self._count
            with suppress(PixyError):
                answer = self.node().append_nowait(value, partition=partition)
                await asyncio.wait([answer], timeout=_CALL_S)
                if answer.done():
                    self.history.appended[partition, answer.result()] = value
            await asyncio.sleep(self._rng.uniform(0, 0.02))

    async def _commit(self) -> None:
        while not self._ended:
            places = list(self.history.appended)
            if places:
                partition, offset = max(places)
                where = {TopicPartition("topic", partition): OffsetCommit(offset + 1, "")}
                with suppress(PixyError, TimeoutError):
                    async with asyncio.timeout(_CALL_S):
                        await self.node().backend.commit_offsets(GROUP, where)
                    self.history.committed[partition] = offset + 1
            await asyncio.sleep(self._rng.uniform(0, 0.02))

    async def _publish(self) -> None:
        epoch = 0
        while not self._ended:
            values = {TopicPartition("topic", each): [b"epoch-%d" % epoch] for each in range(PARTITIONS)}
            with suppress(PixyError, TimeoutError):
                async with asyncio.timeout(_CALL_S):
                    await publish_values(self.node().backend, epoch, values, SINK)
                self.history.epoch = epoch
                epoch += 1
            await asyncio.sleep(self._rng.uniform(0, 0.02))


class Taken(NamedTuple):
    """A backup under way: what clients were answered before it began, and what was taken."""

    before: History
    source: TakenSource


def take_under_load(directory: Path, seed: int, count: int = 1, *, ends_first: bool = False) -> list[Taken]:
    """Take what a backup asks for, so often."""
    rng = Random(seed)
    found: list[Taken] = []

    async def taken(load: Load) -> Taken:
        for attempt in range(50):
            before = load.history.copy()
            try:
                return Taken(before, await take(load.node(), load.node(), ends_first))
            except PixyError:
                assert attempt < 49
                await asyncio.sleep(0.2)
        raise AssertionError

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", PARTITIONS, {"replication": "3"})
        load = Load(cluster, rng)
        async with load.running():
            await until(lambda: load.history.epoch > 2 and bool(load.history.committed))
            await asyncio.sleep(rng.uniform(0, 1))
            if seed % 2:
                load.away = rng.choice([1, 2, 3])
                await cluster[load.away].kill()
            for _ in range(count):
                found.append(await taken(load))
        if load.away:
            await cluster[load.away].start()

    run_cluster(scenario, directory, seed=seed)
    return found


def check_taken(taken: Taken) -> None:
    """Compare offsets and epochs of what was taken with its records."""
    state = state_of(taken.source)
    logs = [values_in(batches) for batches in taken.source.logs]
    for each in state.offsets():
        partition, offset = each.offset.partition, each.offset.offset
        assert offset <= len(logs[partition]), "an offset is beyond the records"
    sinks = [SinkRecord.FromString(value) for key, value in state.sinks if key.startswith(b"sink\0")]
    last = max(sink.last_epoch for sink in sinks)
    assert last >= taken.before.epoch
    for log in logs:
        epochs = epochs_in(log)
        assert epochs == sorted(set(epochs))
        assert {*range(last + 1)} <= {*epochs}, "an epoch that counts as published is missing"


def check_all(taken: Iterable[Taken]) -> None:
    for each in taken:
        check_taken(each)


def state_of(source: TakenSource) -> StateToFound:
    records = joined(source.state()).records
    return StateToFound(ExportedRecord(each.state_group, each.key, each.value) for each in records)


def epochs_in(log: Sequence[bytes | None]) -> list[int]:
    return [int(value.removeprefix(b"epoch-")) for value in log if value and value.startswith(b"epoch-")]


def check_restored(directory: Path, taken: Taken) -> None:
    """Back up, restore, start, compare with what clients were answered, and grow to three nodes."""
    before, source = taken
    target = open_target(str(directory / "target"))
    options = BackupOptions(object_bytes=1000, bytes_per_second=0)
    manifest = Backup(source, target, options, lambda: 1, BackupProgress()).run()
    node, others = directory / "new" / "1", RestoreOptions("1.0", 5000)
    Restore(target, manifest, RecordingDisk(), node, others, Random(1).randbytes).run(InlineWorker)

    async def scenario(cluster: NodeCluster) -> None:
        one = cluster[1]
        logs = [await one.values(partition=number) for number in range(PARTITIONS)]
        assert logs == [values_in(batches) for batches in source.logs]
        for (partition, offset), value in before.appended.items():
            assert logs[partition][offset] == value
        committed = await one.backend.committed_offsets(GROUP, "topic")
        for partition, offset in before.committed.items():
            assert offset <= committed[partition].offset, "a commit is lost"
        last = max(epochs_in(logs[0]))
        published = await one.backend.publish(SINK, 0, "query", [])
        assert not published.published
        assert before.epoch <= published.last_epoch <= last
        await cluster.add()
        await cluster.add()
        await until(lambda: all(len(each) == 3 for each in one.node.metadata.topics["topic"].replicas))
        for asked in cluster.nodes.values():
            for number, log in enumerate(logs):
                value = b"new at %d" % asked.number
                log.append(value)
                assert await asked.append(value, partition=number) == len(log) - 1, "not written"
        for asked in cluster.nodes.values():
            assert [await asked.values(partition=number) for number in range(PARTITIONS)] == logs

    # Staged records here are old by their timestamps.
    run_cluster(scenario, directory / "new", 1, storage=StorageConfig(retention=0, reserve_bytes=0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_backup_has_what_was_answered_before_it_and_nothing_points_beyond(
    tmp_path: Path, seed: int
) -> None:
    taken = take_under_load(tmp_path / "nodes", seed, 10)
    check_all(taken)
    check_restored(tmp_path, taken[-1])


@pytest.mark.long
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_more_seeds_of_the_same(tmp_path: Path, seed: int) -> None:
    test_a_backup_has_what_was_answered_before_it_and_nothing_points_beyond(tmp_path, seed)


# --- seeded bugs ----------------------------------------------------------------------------------


def test_ends_that_are_read_before_the_state_are_found(tmp_path: Path) -> None:
    (taken,) = take_under_load(tmp_path, 0, ends_first=True)
    with pytest.raises(AssertionError, match=r"beyond the records|counts as published is missing"):
        check_taken(taken)


def test_publications_that_are_not_waited_for_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: StagingRouter) -> None:
        """Nothing is waited for."""

    monkeypatch.setattr(StagingRouter, "wait_finished", at_once)
    all_taken = take_under_load(tmp_path, 0, 50)
    with pytest.raises(AssertionError, match="counts as published is missing"):
        check_all(all_taken)


def test_rows_that_a_restore_keeps_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = take_under_load(tmp_path / "nodes", 0)
    plain = AppliedPosition
    # The newest results of proposals of the former nodes in their first lives.
    rows = [
        ProposerRow(
            node_id=number, incarnation=1, sequences=range(1, 20), values=range(1, 20), errors=[""] * 19
        )
        for number in (1, 2, 3)
    ]
    monkeypatch.setattr(founded_node, "AppliedPosition", lambda **fields: plain(**fields, rows=rows))
    with pytest.raises((AssertionError, DeadlineExceeded), match=r"not written|not known to be written"):
        check_restored(tmp_path, taken)
