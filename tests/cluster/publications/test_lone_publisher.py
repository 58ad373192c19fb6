"""Publications on a node: over restarts, from files of every size, and the expiry of stages and
sinks.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.cluster.log.replica import Replica
from pixy.cluster.publications import roll_forward
from pixy.cluster.state.publications import Publication
from pixy.errors import CorruptData, FailedPrecondition
from pixy.inspect import ReadOnlyDisk, Verdict, check_node, dump
from pixy.proto.state_pb2 import PartitionCommand
from pixy.records import TopicPartition
from pixy.staging import Published, StageCall, StageName
from pixy.storage.partition import log_segments
from tests.cluster.nodes import Cluster, copy_of, prompt_writer
from tests.cluster.staging import finished, piece_of, publications, publish, stage, staged, start
from tests.cluster.stopped import wrong
from tests.fakes.waiting import until
from tests.fakes.worker import StepWorker

HOUR_S = 3600.0
DAY_S = 24 * 3600.0


@pytest.fixture(autouse=True)
def _no_delays() -> Iterator[None]:
    with prompt_writer():
        yield


@pytest.fixture(params=["copied", "linked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The method by which parts become segments."""
    monkeypatch.setattr(log_segments, "LINK_BYTES_MIN", 1 << 40 if request.param == "copied" else 0)
    return str(request.param)


async def test_a_publication_is_written_to_segments_and_its_stages_are_removed(
    tmp_path: Path, way: str
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.append(b"before")
        await stage(cluster, "a", piece_of(cluster, b"1", b"2"), piece_of(cluster, b"3", partition=1))
        await stage(cluster, "b", piece_of(cluster, b"4" * 1500))
        assert len(staged(cluster)) == 2
        assert await publish(cluster, 0, "a", "b") == Published(True, 0)
        await cluster.append(b"behind")
        await finished(cluster)
        assert cluster.values() == [b"before", b"1", b"2", b"4" * 1500, b"behind"]
        assert cluster.values(partition=1) == [b"3"]
        assert staged(cluster) == []
        assert len(cluster.disk.did("link")) == (3 if way == "linked" else 0)
        assert cluster.node.publisher._stages.bytes == 0
    again = Cluster(tmp_path / "data")
    async with again.running():
        assert again.values() == [b"before", b"1", b"2", b"4" * 1500, b"behind"]
        assert await publish(again, 0) == Published(False, 0)


async def test_an_answered_publication_survives_a_kill_before_any_write_to_segments(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "pace", replace(Cluster.pace, gather_s=1e6))
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"before")
        await stage(cluster, "a", piece_of(cluster, b"1", b"2"))
        await publish(cluster, 0, "a")
        await cluster.append(b"behind")
        killed = start(cluster)
        assert cluster.values() == [b"before", b"1", b"2", b"behind"]
    monkeypatch.setattr(Cluster, "pace", replace(Cluster.pace, gather_s=0))
    async with killed.running():
        assert killed.values() == [b"before", b"1", b"2", b"behind"]
        await finished(killed)
        assert killed.values() == [b"before", b"1", b"2", b"behind"]
        assert staged(killed) == []


async def test_a_publication_that_reached_no_partition_is_rolled_forward_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await stage(cluster, "a", piece_of(cluster, b"1"), piece_of(cluster, b"2", partition=1))
        # As if the process ended right after the commit point.
        monkeypatch.setattr(cluster.node.publisher, "committed", lambda _: None)
        await publish(cluster, 0, "a")
        assert cluster.values() == []
        killed = start(cluster)
    async with killed.running():
        await killed.settle()
        assert (killed.values(), killed.values(partition=1)) == ([b"1"], [b"2"])
        assert await publish(killed, 0, "a") == Published(False, 0)
        await finished(killed)
        with pytest.raises(FailedPrecondition):
            await publish(killed, 1, "a")


async def test_a_sealed_stage_outlives_the_process_and_an_open_one_does_not(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "sealed", piece_of(cluster, b"1"))
        await cluster.node.publisher.stage(StageCall(StageName("sink", "open"), 0, piece_of(cluster, b"2")))
        killed = start(cluster)
    async with killed.running():
        assert len(staged(killed)) == 1
        with pytest.raises(FailedPrecondition, match=r"open"):
            await publish(killed, 0, "sealed", "open")
        # Its writer did not receive the answer, and retries.
        await stage(killed, "sealed", piece_of(killed, b"1"))
        assert await publish(killed, 0, "sealed") == Published(True, 0)
        assert killed.values() == [b"1"]


async def test_stages_that_are_gone_make_their_partition_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await stage(cluster, "a", piece_of(cluster, b"1"))
        monkeypatch.setattr(cluster.node.publisher, "committed", lambda _: None)
        await publish(cluster, 0, "a")
        killed = start(cluster)
    for path in (killed.directory / "staging").rglob("*.batches"):
        path.write_bytes(path.read_bytes()[:-1])
    async with killed.running():
        replica = killed.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        assert ".batches" in str(replica.fault)
        with pytest.raises(CorruptData):
            await publish(killed, 0, "a")
        await stage(killed, "b", piece_of(killed, b"2", partition=1))
        assert await publish(killed, 1, "b") == Published(True, 1)
        assert killed.values(partition=1) == [b"2"]
        # It is removed with its topic.
        await killed.node.commands.delete_topic("topic", force=True)
        await finished(killed)
        assert staged(killed) == []


async def test_a_publication_of_other_stages_than_were_committed_fails_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        # One in each iteration of the loop, so the caller waits already when the last is looked at.
        monkeypatch.setattr(roll_forward, "STAGES_PER_ITERATION", 1)
        await cluster.create_topic("topic", 8)
        await stage(cluster, "a", *(piece_of(cluster, b"1", partition=each) for each in range(8)))
        publisher = cluster.node.publisher
        committed = publisher.committed

        def committed_and_changed(publication: Publication) -> None:
            committed(publication)
            (each,) = publisher._stages.of_topic(publication.parts[0].topic_id)
            del each.parts[max(each.parts)]

        monkeypatch.setattr(publisher, "committed", committed_and_changed)
        async with asyncio.timeout(10):
            with pytest.raises(CorruptData, match="other stages than it had"):
                await publish(cluster, 0, "a")


async def test_a_damaged_batch_of_a_stage_is_found_by_the_start_that_applies_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await stage(cluster, "a", piece_of(cluster, b"1" * 100))
        await publish(cluster, 0, "a")
        killed = start(cluster)
    for path in (killed.directory / "staging").rglob("*.batches"):
        data = bytearray(path.read_bytes())
        data[-10] ^= 1
        path.write_bytes(data)
    async with killed.running():
        replica = killed.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        assert "byte 0" in str(replica.fault)


def flip(path: Path, at: int) -> None:
    """Change a byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flip_record(part: Path) -> None:
    """Change a byte of the first batch's records."""
    flip(part, 65)


def flip_length(part: Path) -> None:
    """Change a length, which the checksum does not cover."""
    flip(part, 8)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "record": (flip_record, "byte 0"),
    "length": (flip_length, "byte 0"),
    "short": (lambda part: part.write_bytes(part.read_bytes()[:-1]), "ends at byte"),
    "missing": (Path.unlink, "is missing"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_damaged_part_makes_its_partition_not_ready_and_loses_nothing(
    tmp_path: Path, way: str, kind: str
) -> None:
    damage, reason = DAMAGES[kind]
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await cluster.append(b"before", b"before too")
        await cluster.sync()
        pieces = piece_of(cluster, b"1" * 100, b"2"), piece_of(cluster, b"3", partition=1)
        await stage(cluster, "a", *pieces)
        writer = cluster.node._log.writer
        thread, writer._worker = writer._worker, StepWorker()
        await publish(cluster, 0, "a")
        await cluster.append(b"behind")
        [part] = (cluster.directory / "staging").rglob("*-0.batches")
        whole = part.read_bytes()
        damage(part)
        in_flight = cluster.append_nowait(b"in flight")
        while writer._worker:
            writer._worker.step()
        writer._worker = thread
        # Committed, so it is answered, though nobody can read it before the part is repaired.
        assert await in_flight == 5
        await cluster.sync()
        replica = cluster.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        if way == "linked" and kind == "record":
            # Linking does not read the file, so the damage becomes the segment's: the first reader
            # finds it.
            with pytest.raises(CorruptData, match=r"00002\.log is corrupt at byte 0"):
                cluster.values()
            assert replica.fault is None
            return
        assert reason in str(replica.fault)
        assert part.name in str(replica.fault)
        await stage(cluster, "b", piece_of(cluster, b"4"))
        with pytest.raises(CorruptData, match=part.name):
            await publish(cluster, 1, "b")
        await cluster.append(b"other", partition=1)
        assert cluster.values(partition=1) == [b"3", b"other"]
        killed = start(cluster)
    async with killed.running():
        replica = killed.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        assert reason in str(replica.fault)
    # Restore it from a backup.
    (killed.directory / part.relative_to(cluster.directory)).write_bytes(whole)
    async with killed_again(killed).running() as mended:
        values = [b"before", b"before too", b"1" * 100, b"2", b"behind", b"in flight"]
        assert mended.values() == values
        await finished(mended)
        assert mended.values() == values


def killed_again(cluster: Cluster) -> Cluster:
    return start(cluster, "again")


NAMELESS: dict[str, Callable[[Cluster, Path], object]] = {
    "wrong byte": lambda _, path: flip(path / "stage", -1),
    "unlisted": lambda cluster, path: cluster.disk.unreadable.add(path),
}


@pytest.mark.parametrize("kind", NAMELESS)
async def test_a_stage_whose_name_cannot_be_read_stops_only_its_own_publication(
    tmp_path: Path, kind: str
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        for name in ("a", "b"):
            await stage(cluster, name, piece_of(cluster, name.encode()))
    again = Cluster(tmp_path / "data")
    path = again.directory / "staging" / staged(again)[0]
    whole = (path / "stage").read_bytes()
    NAMELESS[kind](again, path)
    async with again.running():
        with pytest.raises(CorruptData, match=f"stage a of sink sink does not exist.* damaged: {path}"):
            await publish(again, 0, "a", "b")
        status = await again.node.status()
        (trouble,) = [each for each in status.nodes[0].troubles if str(path) in each]
        assert trouble.startswith("damaged stages of staged writes: 1, ")
        # Its writer has the records yet.
        await stage(again, "c", piece_of(again, b"c"))
        assert await publish(again, 0, "b", "c") == Published(True, 0)
        await again.append(b"behind")
        await finished(again)
        assert again.values() == [b"b", b"c", b"behind"]
    assert staged(again) == [path.name]
    (path / "stage").write_bytes(whole)
    async with Cluster(tmp_path / "data").running() as mended:
        assert (await mended.node.status()).nodes[0].troubles == ()
        assert await publish(mended, 1, "a") == Published(True, 1)
        await finished(mended)
        assert mended.values() == [b"b", b"c", b"behind", b"a"]
    assert staged(mended) == []


@pytest.mark.parametrize("kind", NAMELESS)
async def test_a_published_stage_whose_name_cannot_be_read_stops_only_its_partitions(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await stage(cluster, "a", piece_of(cluster, b"1"))
        monkeypatch.setattr(cluster.node.publisher, "committed", lambda _: None)
        publishing = asyncio.create_task(publish(cluster, 0, "a"))
        await until(lambda: publications(cluster))
        killed = start(cluster)
        await asyncio.wait([publishing])
    path = killed.directory / "staging" / staged(killed)[0]
    whole = (path / "stage").read_bytes()
    NAMELESS[kind](killed, path)
    async with killed.running():
        await killed.append(b"other", partition=1)
        assert killed.values(partition=1) == [b"other"]
        replica = killed.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        assert f"was published, and is missing; or it is one that is damaged: {path}" in str(replica.fault)
        assert publications(killed) == [1]
    (path / "stage").write_bytes(whole)
    async with killed_again(killed).running() as mended:
        await finished(mended)
        assert mended.values() == [b"1"]
        assert staged(mended) == []


async def test_a_topic_whose_part_is_damaged_can_be_deleted(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "a", piece_of(cluster, b"1"))
        for part in (cluster.directory / "staging").rglob("*.batches"):
            flip_record(part)
        await publish(cluster, 0, "a")
        await cluster.sync()
        assert publications(cluster) == [1]
        await cluster.node.commands.delete_topic("topic", force=True)
        await finished(cluster)
        assert staged(cluster) == []
        assert list((cluster.directory / "topics").rglob("*")) == []


async def test_a_publication_into_a_topic_that_is_deleted_meanwhile_drops_that_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic")
        await cluster.create_topic("kept")
        await stage(cluster, "a", piece_of(cluster, b"1"), piece_of(cluster, b"2", topic="kept"))
        monkeypatch.setattr(cluster.node.publisher, "committed", lambda _: None)
        await publish(cluster, 0, "a")
        monkeypatch.undo()
        await cluster.node.commands.delete_topic("topic", force=True)
        killed = start(cluster)
    async with killed.running():
        await killed.settle()
        assert killed.values("kept") == [b"2"]
        await finished(killed)


async def test_a_topic_may_be_deleted_before_its_part_is_written(tmp_path: Path, way: str) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "a", piece_of(cluster, b"1"))
        writer = cluster.node._log.writer
        thread, writer._worker = writer._worker, StepWorker()
        await publish(cluster, 0, "a")
        await writer._worker.wait()
        await cluster.node.commands.delete_topic("topic")
        await until(lambda: not staged(cluster))
        while writer._worker:
            writer._worker.step()
        writer._worker = thread
        await finished(cluster)


async def test_stages_expire_when_their_sink_is_inactive_and_not_before(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "old", piece_of(cluster, b"1"))
        cluster.clock.advance(DAY_S * 0.9)
        # Any activity of the sink keeps all its stages.
        await stage(cluster, "young", piece_of(cluster, b"2"))
        cluster.clock.advance(DAY_S * 0.9)
        cluster.node.publisher.expire(cluster.node.now_ms())
        await cluster.settle()
        assert len(staged(cluster)) == 2
        cluster.clock.advance(DAY_S * 0.2)
        cluster.node.publisher.expire(cluster.node.now_ms())
        await cluster.settle()
        assert staged(cluster) == []
        with pytest.raises(FailedPrecondition):
            await publish(cluster, 0, "old")
        assert cluster.node.publisher._stages.bytes == 0


async def test_a_discard_without_stages_keeps_those_of_the_sink(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "sealed", piece_of(cluster, b"1"))
        for _ in range(3):
            cluster.clock.advance(DAY_S * 0.9)
            await cluster.node.publisher.discard("sink", [])
            cluster.node.publisher.expire(cluster.node.now_ms())
            await cluster.settle()
        assert await publish(cluster, 0, "sealed") == Published(True, 0)


async def test_stages_that_their_sink_has_passed_by_expire_however_busy_it_is(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        open_stage = StageName("sink", "growing")
        await stage(cluster, "lost", piece_of(cluster, b"1"))
        await cluster.node.publisher.stage(StageCall(open_stage, 0, piece_of(cluster, b"2")))
        for epoch in range(4):
            await stage(cluster, f"epoch-{epoch}", piece_of(cluster, b"%d" % epoch))
            await publish(cluster, epoch, f"epoch-{epoch}")
            await finished(cluster)
            cluster.node.publisher.expire(cluster.node.now_ms())
            await cluster.settle()
            assert len(staged(cluster)) == (2 if epoch < 3 else 1), epoch
            await cluster.node.publisher.stage(
                StageCall(open_stage, epoch + 1, piece_of(cluster, b"%d" % epoch))
            )
            cluster.clock.advance(DAY_S * 0.4)
        with pytest.raises(FailedPrecondition):
            await publish(cluster, 9, "lost")
        assert cluster.values() == [b"0", b"1", b"2", b"3"]


async def test_sinks_of_queries_are_remembered_and_others_are_not(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        for sink, query in (("once", ""), ("stream", "query")):
            await stage(cluster, "a", piece_of(cluster, b"1"), sink=sink)
            await publish(cluster, 3, "a", sink=sink, query=query)
            # The outcome is remembered until then.
            assert await publish(cluster, 3, sink=sink, query=query) == Published(False, 3)
        await finished(cluster)
        for seconds, remembered in (
            (HOUR_S - 60, ["once", "stream"]),
            (120, ["stream"]),
            (DAY_S, ["stream"]),
        ):
            cluster.clock.advance(seconds)
            cluster.node.publisher.expire(cluster.node.now_ms())
            await cluster.settle()
            assert list(cluster.node.publisher._state.sinks) == remembered


async def test_a_file_system_without_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_segments, "LINK_BYTES_MIN", 0)
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        cluster.disk.fail("link", ".log", 1)
        await stage(cluster, "a", piece_of(cluster, b"1", b"2"))
        await publish(cluster, 0, "a")
        await finished(cluster)
        assert cluster.values() == [b"1", b"2"]


@pytest.mark.slow
async def test_many_partitions_get_their_parts_over_many_turns_in_the_order_of_publications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_forward, "STAGES_PER_ITERATION", 2)
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 9)
        for value, sink in ((b"1", "a"), (b"2", "b")):
            pieces = [piece_of(cluster, value, partition=partition) for partition in range(9)]
            await stage(cluster, "stage", *pieces, sink=sink)
        proposed: list[int] = []
        rolling = cluster.node.publisher._roll_forward
        propose_part = rolling._propose_part

        def noted(*args: Any, **named: Any) -> None:
            proposed[-1] += 1
            propose_part(*args, **named)

        async def count_turns() -> None:
            while True:
                proposed.append(0)
                await asyncio.sleep(0)

        monkeypatch.setattr(rolling, "_propose_part", noted)
        counting = asyncio.create_task(count_turns())
        await asyncio.sleep(0)
        publishing = [
            asyncio.create_task(publish(cluster, 0, "stage", sink="a")),
            asyncio.create_task(publish(cluster, 0, "stage", sink="b")),
        ]
        assert await asyncio.gather(*publishing) == [Published(True, 0)] * 2
        assert [cluster.values(partition=partition) for partition in range(9)] == [[b"1", b"2"]] * 9
        counting.cancel()
        assert (sum(proposed), max(proposed)) == (18, 2)
        await finished(cluster)


async def test_a_stage_is_not_dropped_while_it_is_being_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "a", piece_of(cluster, b"1"))
        held: list[Any] = []
        propose = cluster.node.publisher._propose
        monkeypatch.setattr(cluster.node.publisher, "_propose", lambda *args: held.append(args))
        publishing = asyncio.create_task(publish(cluster, 0, "a"))
        await until(lambda: bool(held))
        await cluster.node.publisher.discard("sink", ["a"])
        monkeypatch.setattr(cluster.node.publisher, "_propose", propose)
        propose(*held[0])
        assert await publishing == Published(True, 0)
        assert cluster.values() == [b"1"]
        await finished(cluster)


async def test_a_cancelled_caller_changes_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "a", piece_of(cluster, b"1"))
        publishing = asyncio.create_task(publish(cluster, 0, "a"))
        await asyncio.sleep(0)
        publishing.cancel()
        assert await publish(cluster, 0, "a") == Published(False, 0)
        assert cluster.values() == [b"1"]
        await finished(cluster)


async def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of a node that was killed with a publication that has reached one of two
    partitions, and a stage.
    """
    monkeypatch.setattr(Cluster, "pace", replace(Cluster.pace, gather_s=1e6))
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic("topic", 2)
        await stage(cluster, "a", piece_of(cluster, b"1", b"2"), piece_of(cluster, b"3", partition=1))
        rolling = cluster.node.publisher._roll_forward
        propose = rolling._propose

        def propose_to_one(replica: Replica, payload: bytes, done: Callable[[Any], None]) -> None:
            if getattr(replica, "partition", None) != TopicPartition("topic", 1):
                propose(replica, payload, done)
            else:
                done(None)

        monkeypatch.setattr(rolling, "_propose", propose_to_one)
        await publish(cluster, 7, "a")
        await stage(cluster, "b", piece_of(cluster, b"4"))
        await cluster.settle()
        return copy_of(tmp_path / "data", "killed")


async def test_a_check_counts_publications_and_reports_unfinished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await unfinished(tmp_path, monkeypatch)
    assert wrong(directory) == []
    report = check_node(ReadOnlyDisk(), directory)
    # The publication's entries for one partition in the journal.
    assert report.records == 2
    found = [each.found for each in report.findings if each.where == "sinks"]
    assert "publication 1 of sink sink is not finished: the next start goes on with it" in found
    staged_ones = [each for each in report.findings if each.kind == "stage"]
    assert [each.verdict for each in staged_ones] == [Verdict.OK, Verdict.OK]

    def lose(directory: Path) -> None:
        shutil.rmtree(directory / "staging" / f"{1:020d}")

    damage = wrong(directory, lose)
    assert ("damaged", "sinks") in [(verdict, where) for verdict, where, _ in damage]
    assert any("topic-0, topic-1 will not be ready" in text for _, _, text in damage)


async def test_a_dump_shows_stages_sinks_and_publications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list(dump(ReadOnlyDisk(), await unfinished(tmp_path, monkeypatch), records=True))
    assert [line for line in lines if line.what == "damage"] == []
    stages_shown = [dict(line.fields) for line in lines if line.what == "stage"]
    assert [(each["sink_id"], each["stage_id"]) for each in stages_shown] == [("sink", "a"), ("sink", "b")]
    assert [part["records"] for part in stages_shown[0]["parts"]] == [2, 1]
    commands = [dict(line.fields) for line in lines if line.what == "entry"]
    (published,) = [each["publish_stages"] for each in commands if "publish_stages" in each]
    assert (published["epoch"], published["stage_ids"]) == (7, ["a"])
    (parts,) = [each["publish_parts"] for each in commands if "publish_parts" in each]
    assert parts["publication"] == 1
    values = [line.fields["value"] for line in lines if line.what == "record"]
    assert sorted(values) == [b"1", b"2", b"3", b"4"]


async def test_a_publication_without_its_predecessor_is_refused(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
        await stage(cluster, "a", piece_of(cluster, b"a"))
        replica = cluster.node.partition(TopicPartition("topic", 0))
        assert replica is not None
        command = PartitionCommand()
        published = command.publish_parts
        published.publication, published.predecessor = 7, 5
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        cluster.node._proposals.propose_and_tell(replica, command.SerializeToString(), result.set_result)
        refusal = await result
        assert isinstance(refusal, FailedPrecondition)
        assert str(refusal) == "publication 7 comes before its predecessor 5"
        assert replica.publication == 0
        assert (await publish(cluster, 1, "a")).published
        assert cluster.values() == [b"a"]


async def test_a_start_resumes_a_publication_that_reached_some_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await unfinished(tmp_path, monkeypatch)
    monkeypatch.setattr(Cluster, "pace", replace(Cluster.pace, gather_s=0))
    killed = Cluster(directory)
    async with killed.running():
        await killed.settle()
        assert (killed.values(), killed.values(partition=1)) == ([b"1", b"2"], [b"3"])
        await finished(killed)
        assert len(staged(killed)) == 1
