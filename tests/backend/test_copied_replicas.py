"""Replicas that have fallen behind the journals of the others, and lack records: they fetch a copy
of what they lack, from whichever replica can give it, and go on.
"""

import asyncio
import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.backend.embedded.local_partitions import LocalPartitions
from pixy.cluster import problems
from pixy.cluster.log import PartitionCondition
from pixy.cluster.snapshots.copy_serving import CopyServing
from pixy.errors import CopyTryLater, CorruptData, Unavailable
from pixy.inspect import ReadOnlyDisk, Verdict, check_node, mark_damaged
from pixy.peers import Answer
from pixy.proto.copies_pb2 import BeginCopyRequest, BeginCopyResponse, FetchCopyRequest
from pixy.storage import PartitionLog, RealDisk
from tests.backend.test_replicas_that_were_away import (
    OPTIONS,
    QUIET,
    elect,
    fill,
    group_on,
    leader_of,
    quiet_and_busy,
    replica_on,
)
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

EPOCH_BYTE, MAGIC_BYTE = 15, 16
"""Positions of the leader epoch and of the format number in a record batch."""
MISSED = [b"%d" % number * 300 for number in range(3, 30)]


def topics_of(node: ClusterNode) -> Path:
    return node.cluster.directory / str(node.number) / "topics"


def left_of_copies(node: ClusterNode) -> list[str]:
    return [path.name for path in topics_of(node).iterdir() if not path.name.startswith(("topic-", "busy-"))]


async def one_behind(cluster: NodeCluster) -> tuple[list[ClusterNode], ClusterNode]:
    """As `quiet_and_busy`, and the node that is away lacks records that are in no journal."""
    nodes, away = await quiet_and_busy(cluster)
    for value in MISSED:
        await nodes[0].append(value)
    await elect(nodes)
    await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
    return nodes, away


async def copied(away: ClusterNode, nodes: list[ClusterNode]) -> None:
    """Wait until a replica has all that its leader has, and nothing of a copy is left."""

    def is_there() -> bool:
        return (
            group_on(away).applied_index == group_on(leader_of(*nodes)).applied_index
            and replica_on(away).is_well
            and not left_of_copies(away)
        )

    await until(is_there)


async def values_of(away: ClusterNode, nodes: list[ClusterNode]) -> list[bytes]:
    """All records, from a node whose own replica has to serve them: its vote and its log count."""
    await nodes[1].kill()
    await away.append(b"last")
    assert replica_on(away).is_well
    return await away.values()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_replica_behind_the_journal_fetches_what_it_lacks(tmp_path: Path, restarts: bool) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        await away.start()
        await copied(away, nodes)
        if restarts:
            await away.kill()
            await away.start()
        assert await values_of(away, nodes) == [b"0", b"1", b"2", *MISSED, b"last"]
        assert not any("copies" in each for each in problems(await away.backend.cluster_status()))

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.parametrize("together", [1, 9])
def test_it_begins_where_the_others_begin_if_its_own_records_are_removed_there(
    tmp_path: Path, together: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        for at in range(0, len(MISSED), together):
            await nodes[0].append(*MISSED[at : at + together])
        await nodes[0].backend.delete_records("topic", {0: 10})
        await fill(nodes, until_lost=group_on(nodes[0]).applied_index)
        await away.start()
        await copied(away, nodes)
        assert replica_on(away).log.begin_offset == 10
        # A batch is not divided.
        first = MISSED[7:] if together == 1 else MISSED
        assert await values_of(away, nodes) == [*first, b"last"]

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_nobody_but_the_leader_is_believed_that_records_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, lies = CopyServing.begin, list[int]()

    async def begin_late_or_lie(serving: CopyServing, caller: int, payload: bytes) -> bytes:
        request = BeginCopyRequest.FromString(payload)
        answer = BeginCopyResponse.FromString(await begin(serving, caller, payload))
        replica = serving._partitions.find_replica(request.raft_group)
        assert replica is not None
        assert replica.group is not None
        if not replica.group.leads:
            answer.log_begin_offset = request.end_offset
            lies.append(answer.responder)
        elif not lies:
            raise CopyTryLater("the other one is asked first")
        return answer.SerializeToString()

    monkeypatch.setattr(CopyServing, "begin", begin_late_or_lie)

    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        await away.start()
        await copied(away, nodes)
        assert lies
        assert replica_on(away).log.begin_offset == 0
        assert await values_of(away, nodes) == [b"0", b"1", b"2", *MISSED, b"last"]

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_a_damaged_replica_behind_the_journal_is_copied_whole_and_ready_again(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        (segment,) = (topics_of(away) / "topic-0").glob("*.log")
        segment.write_bytes(segment.read_bytes()[:-1])
        await away.begin()
        await until(lambda: away.node.partitions.get(QUIET) is not None)
        await copied(away, nodes)
        assert replica_on(away).condition is PartitionCondition.READY
        assert await values_of(away, nodes) == [b"0", b"1", b"2", *MISSED, b"last"]
        assert not any("damaged" in each for each in problems(await away.backend.cluster_status()))

    run_cluster(scenario, tmp_path, **OPTIONS)


def flipped(directory: Path) -> None:
    """A flipped bit in the oldest batch, which a reader finds."""
    segment = min(directory.glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)


def unreadable(directory: Path) -> None:
    """A bad sector in the oldest segment, which a reader finds."""


def cut(directory: Path) -> None:
    """The newest segment lacks its last byte, which a start finds."""
    segment = max(directory.glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-1])


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("damage", [flipped, unreadable, cut, shutil.rmtree])
def test_a_damaged_replica_fetches_its_files_anew_and_votes_meanwhile(
    tmp_path: Path, damage: Callable[[Path], None], restarts: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        damage(topics_of(away) / "topic-0")
        await away.begin()
        await until(
            lambda: away.node.partitions.get(QUIET) is not None and replica_on(away).group is not None
        )
        if damage in (flipped, unreadable):
            if damage is unreadable:
                away.disk.unreadable |= {*(topics_of(away) / "topic-0").glob("*.log")}
            with pytest.raises(CorruptData):
                await LocalPartitions(away.node, lambda: None).fetch(
                    replica_on(away), 0, max_bytes=1000, max_wait=0
                )
            away.disk.unreadable.clear()  # new files are elsewhere on the disk
        assert replica_on(away).fault is not None
        # With it and one more node there is a majority.
        await nodes[1].kill()
        await nodes[0].append(b"3")
        await copied(away, nodes[:1])
        assert replica_on(away).condition is PartitionCondition.READY
        if restarts:
            await away.kill()
            await away.start()
        assert await away.values() == [b"0", b"1", b"2", b"3"]
        assert not any("damaged" in each for each in problems(await away.backend.cluster_status()))

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_a_damaged_replica_whose_records_begin_within_a_batch_is_repaired(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        await away.start()
        await nodes[0].append(*MISSED)
        await nodes[0].backend.delete_records("topic", {0: 10})
        await until(lambda: replica_on(away).log.begin_offset == 10)
        await away.kill()
        cut(topics_of(away) / "topic-0")
        await away.begin()
        await until(lambda: away.node.partitions.get(QUIET) is not None and replica_on(away).is_well)
        assert await values_of(away, nodes) == [*MISSED, b"last"]

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_damage_that_a_check_has_marked_is_repaired_by_the_next_start(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await quiet_and_busy(cluster)
        directory = topics_of(away).parent
        flipped(topics_of(away) / "topic-0")
        report = check_node(ReadOnlyDisk(), directory)
        assert report.verdict is Verdict.DAMAGED
        mark_damaged(RealDisk(), report)
        await away.begin()
        await until(lambda: away.node.partitions.get(QUIET) is not None and replica_on(away).is_well)
        await copied(away, nodes)
        await away.kill()
        assert check_node(ReadOnlyDisk(), directory).verdict is Verdict.OK
        await away.start()
        assert await values_of(away, nodes) == [b"0", b"1", b"2", b"last"]

    run_cluster(scenario, tmp_path, **OPTIONS)


class Sources:
    """Sources of copies.

    Attributes:
        failing: those that begin sessions, and then fail.
        asked: set at the first request for bytes of the quiet partition.
        may_answer: set while they answer.
    """

    def __init__(self) -> None:
        self.failing: list[ClusterNode] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Sources:
    found, fetch = Sources(), CopyServing.fetch

    async def controlled(self: CopyServing, caller: int, payload: bytes) -> Answer:
        session = FetchCopyRequest.FromString(payload).session
        if self._replicas[session][0].partition == QUIET:
            found.asked.set()
        await found.may_answer.wait()
        if any(self._log is each.node._log for each in found.failing):
            raise Unavailable("a failing source")
        return await fetch(self, caller, payload)

    monkeypatch.setattr(CopyServing, "fetch", controlled)
    return found


def rotten(leader: ClusterNode, sources: Sources) -> None:
    """The segments of the leader have a flipped bit."""
    for segment in (topics_of(leader) / "topic-0").glob("*.log"):
        content = bytearray(segment.read_bytes())
        content[-1] ^= 1
        segment.write_bytes(content)


def lost(leader: ClusterNode, sources: Sources) -> None:
    """The segments of the leader have bad sectors: it is damaged, too, once that is found."""
    leader.disk.unreadable |= {*(topics_of(leader) / "topic-0").glob("*.log")}


def older(leader: ClusterNode, sources: Sources) -> None:
    """The first batch of the leader says that it is of a later time than those behind it."""
    (segment,) = (topics_of(leader) / "topic-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[EPOCH_BYTE] += 1
    segment.write_bytes(content)


def silent(leader: ClusterNode, sources: Sources) -> None:
    """The leader begins a session, and then fails."""
    sources.failing.append(leader)


@pytest.mark.parametrize("break_", [rotten, lost, silent, older])
def test_another_replica_gives_what_the_leader_cannot(
    tmp_path: Path, break_: Callable[[ClusterNode, Sources], None], sources: Sources
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        leader = leader_of(*nodes)
        break_(leader, sources)
        await away.start()
        if break_ is lost:
            await until(lambda: replica_on(leader).fault is not None)
            leader.disk.unreadable.clear()  # the files of a repair are elsewhere on the disk
        await copied(away, nodes)
        await until(lambda: replica_on(leader).is_well)
        log = replica_on(away).log
        assert log.read(0, 1 << 20).batches
        assert log.end_offset == 3 + len(MISSED)

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_a_replica_with_a_damaged_record_gives_the_others_and_gets_that_one_back(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        leader = leader_of(*nodes)
        await next(each for each in nodes if each is not leader).kill()
        flipped(topics_of(leader) / "topic-0")
        with pytest.raises(CorruptData) as found:
            replica_on(leader).log.read(0, 1000)
        leader.node.partitions.set_fault(replica_on(leader), found.value)
        await away.begin()
        await until(lambda: away.node.partitions.get(QUIET) is not None)
        await until(lambda: replica_on(away).is_well and replica_on(leader).is_well)
        assert await away.values() == [b"0", b"1", b"2", *MISSED]

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_own_records_that_a_copy_finds_damaged_are_fetched_as_well(tmp_path: Path, sources: Sources) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        sources.may_answer.clear()
        await away.begin()
        await sources.asked.wait()
        (segment,) = (topics_of(away) / "topic-0").glob("*.log")
        content = bytearray(segment.read_bytes())
        content[MAGIC_BYTE] ^= 1
        segment.write_bytes(content)
        sources.may_answer.set()
        await copied(away, nodes)
        assert await values_of(away, nodes) == [b"0", b"1", b"2", *MISSED, b"last"]

    run_cluster(scenario, tmp_path, **OPTIONS)


def failing(disk: RecordingDisk, what: str, ending: str, error: int) -> list[Call]:
    """Fail as `RecordingDisk.fail`; returns the calls that have failed so far."""
    failed: list[Call] = []
    disk.fail(what, ending, error)
    fail = disk.before

    def before(call: Call) -> None:
        try:
            fail(call)
        except OSError:
            failed.append(call)
            raise

    disk.before = before
    return failed


@pytest.mark.parametrize(
    "what", [("write", ".log"), ("link", ".log"), ("create", "copy.part"), ("make_directory", "-copy")]
)
def test_a_full_disk_ends_a_copy_and_it_is_made_later(tmp_path: Path, what: tuple[str, str]) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        await away.begin()
        failed = failing(away.disk, *what, errno.ENOSPC)
        await until(lambda: away.node.partitions.get(QUIET) is not None)
        await until(lambda: bool(failed) and replica_on(away).needs_copy)
        failed.clear()  # those of another partition
        await until(lambda: bool(failed) and not left_of_copies(away))
        assert replica_on(away).needs_copy
        away.disk.heal()
        await copied(away, nodes)
        assert await values_of(away, nodes) == [b"0", b"1", b"2", *MISSED, b"last"]

    run_cluster(scenario, tmp_path, **OPTIONS)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("name", ["-replaced", "topic-0"])
def test_a_full_disk_holds_up_the_names_of_a_copy_until_there_is_room(
    tmp_path: Path, name: str, restarts: bool
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        await away.begin()
        failed = failing(away.disk, "rename", name, errno.ENOSPC)
        await until(lambda: len(failed) > 1)
        if restarts:
            await away.kill()
            await away.start()
            failed.clear()
            await until(lambda: len(failed) > 1)
        with pytest.raises(Unavailable):
            await LocalPartitions(away.node, lambda: None).fetch(
                replica_on(away), 0, max_bytes=1000, max_wait=0
            )
        assert any("wait for room" in each for each in problems(await away.backend.cluster_status()))
        away.disk.heal()
        await copied(away, nodes)
        assert await values_of(away, nodes) == [b"0", b"1", b"2", *MISSED, b"last"]
        assert not any("room" in each for each in problems(await away.backend.cluster_status()))

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_a_read_that_waits_goes_on_with_the_records_of_a_copy(tmp_path: Path, sources: Sources) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        _, away = await one_behind(cluster)
        sources.may_answer.clear()
        await away.begin()
        await sources.asked.wait()
        replica, end = replica_on(away), 3 + len(MISSED)
        assert replica.log.end_offset == 3
        reading = LocalPartitions(away.node, lambda: None).fetch(replica, end, max_bytes=1, max_wait=0)
        found = asyncio.create_task(reading)
        await asyncio.sleep(0)
        sources.may_answer.set()
        assert (await found).high_watermark == end

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_the_deletion_of_the_topic_ends_a_copy_and_leaves_nothing(tmp_path: Path, sources: Sources) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        sources.may_answer.clear()
        await away.start()
        await sources.asked.wait()
        await nodes[0].backend.delete_topic("topic")
        sources.may_answer.set()
        await until(lambda: not left_of_copies(away) and not (topics_of(away) / "topic-0").exists())

    run_cluster(scenario, tmp_path, **OPTIONS)


def test_retention_removes_nothing_that_a_copy_needs(
    tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = OPTIONS | {"storage": replace(OPTIONS["storage"], segment_bytes=1024)}

    def segments_of(node: ClusterNode) -> int:
        return len(list((topics_of(node) / "topic-0").glob("*.log")))

    async def scenario(cluster: NodeCluster) -> None:
        nodes, away = await one_behind(cluster)
        leader, before = leader_of(*nodes), segments_of(leader_of(*nodes))
        sources.may_answer.clear()
        await away.begin()
        await sources.asked.wait()
        dropped: list[PartitionLog] = []
        drop = PartitionLog.drop_segments

        def count(self: PartitionLog, log_begin_offset: int) -> list[Path]:
            dropped.append(self)
            return drop(self, log_begin_offset)

        monkeypatch.setattr(PartitionLog, "drop_segments", count)
        # It waits for the one that is being copied, for some seconds.
        deletion = asyncio.ensure_future(leader.backend.delete_records("topic", {0: 20}))
        await until(lambda: replica_on(leader).log.begin_offset == 20)
        await leader.node._log.writer.flush()
        await until(lambda: replica_on(leader).log in dropped)
        assert segments_of(leader) == before
        sources.may_answer.set()
        await copied(away, nodes)
        await deletion
        await until(lambda: replica_on(away).log.begin_offset == 20)
        await until(lambda: segments_of(leader) < before)

    run_cluster(scenario, tmp_path, **options)
