"""Files of replicated stages: what stays, for whom, and what goes."""

import asyncio
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pixy.backend import TopicPartition
from pixy.cluster.publications.piece_retention import PieceRetention
from pixy.cluster.replicas.partitions import Partitions
from pixy.cluster.state import MOVES_LEVEL
from pixy.cluster.state.publications import SinksState
from pixy.inspect import ReadOnlyDisk, Verdict, check_node, dump
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import PartitionCommand, PublishedPart, PublishParts
from pixy.raft import ConfState, Entry
from pixy.staging import Pieces, Stages
from pixy.storage import EntryType
from tests.cluster.moving import set_level
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import piece_of, publish_values, stage_values
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC, OTHER = TopicPartition("topic", 0), TopicPartition("other", 0)


def stages_on(node: ClusterNode) -> list[int]:
    """Numbers of the stages with pieces on a node."""
    directory = node.cluster.directory / str(node.number) / "pieces"
    return sorted(int(path.stem) for path in directory.glob("*"))


def everywhere(cluster: NodeCluster, *stages: int) -> bool:
    return all(stages_on(node) == list(stages) for node in cluster.nodes.values())


async def start(cluster: NodeCluster, retain_bytes: int) -> None:
    """Start with topics, and with room for so many bytes of published stages."""
    cluster.journal = replace(cluster.journal, retain_bytes=retain_bytes)
    await cluster.start()
    for topic in ("topic", "other"):
        await cluster[1].backend.create_topic(topic, 1)


def test_files_of_published_stages_go_once_they_are_durable_in_the_logs(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 0)
        for number in range(1, 4):
            await publish_values(cluster[1].backend, number, {TOPIC: [b"%d" % number], OTHER: [b"x"]})
        assert everywhere(cluster, 1, 2, 3), "the writer of segments has not synced them"
        await stage_values(cluster[1].backend, "sink", "sealed", {TOPIC: [b"4"]})
        await until(lambda: everywhere(cluster, 4))
        await cluster.stop()
        await cluster.start()
        for node in cluster.nodes.values():
            assert await node.values() == [b"1", b"2", b"3"]
        assert everywhere(cluster, 4)

    run_cluster(scenario, tmp_path, starts=False)


def test_the_newest_published_files_stay_for_followers(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 25_000)
        for number in range(1, 6):
            await publish_values(cluster[1].backend, number, {TOPIC: [bytes(10_000)]})
        await until(lambda: everywhere(cluster, 4, 5))
        await cluster.stop()
        await cluster.start()
        assert everywhere(cluster, 4, 5)
        await publish_values(cluster[2].backend, 6, {TOPIC: [bytes(10_000)]})
        await until(lambda: everywhere(cluster, 5, 6))

    run_cluster(scenario, tmp_path, starts=False)


def test_retained_files_do_not_count_as_staged(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 1 << 20)
        for number in range(1, 4):
            await publish_values(cluster[1].backend, number, {TOPIC: [bytes(10_000)]})
        await asyncio.sleep(10)
        for node in cluster.nodes.values():
            pieces = node.node._storage.pieces
            assert stages_on(node) == [1, 2, 3]
            assert pieces.retained_bytes == pieces.bytes > 30_000

    run_cluster(scenario, tmp_path, starts=False)


def test_the_last_node_keeps_files_for_nobody(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 1 << 20)
        await stage_values(cluster[1].backend, "sink", "early", {TOPIC: [b"a"]})
        for node_id in (cluster[2].id, cluster[3].id):
            await cluster[1].backend.remove_node(node_id)
        first = cluster[1]
        await until(lambda: first.node.is_alone)
        await until(lambda: first.node.partition(TOPIC).group.storage.conf_state.voters == (first.id,))  # type: ignore[union-attr]
        assert (await first.backend.publish("sink", 1, "query", ["early"])).published
        await first.backend.stage("sink", "late", 0, piece_of({TOPIC: [b"b"]}))
        await until(lambda: stages_on(first) == [])
        assert await first.values() == [b"a"]
        assert first.node.state_groups.sinks.table.stages == {}, "its stages are its own again"

    run_cluster(scenario, tmp_path, starts=False)


@pytest.mark.parametrize("level", [MOVES_LEVEL, MOVES_LEVEL - 1])
def test_nodes_that_leave_keep_files_until_they_are_durable_in_their_logs(
    tmp_path: Path, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata says at once that they are to have no replicas, or have none; they leave the raft
    groups later.
    """
    set_level(monkeypatch, level)

    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 0)
        for node in cluster.nodes.values():
            node.node._log.driver.change_configuration = lambda *_: False  # type: ignore[method-assign]
        await publish_values(cluster[1].backend, 1, {TOPIC: [b"1"]})
        for node_id in (2, 3):
            await cluster[1].node.commands.remove_node(cluster[node_id].id)
        assert cluster[1].node.metadata.topics["topic"].placed == ((cluster[1].id,),)
        await publish_values(cluster[1].backend, 2, {TOPIC: [b"2"]})
        await until(
            lambda: not any(node.node.state_groups.sinks.publications for node in cluster.nodes.values())
        )
        assert everywhere(cluster, 1, 2), "the writer of segments has not synced them"

    run_cluster(scenario, tmp_path, starts=False)


def test_a_file_that_a_crash_has_brought_back_goes_as_a_published_one(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 0)
        await stage_values(cluster[1].backend, "sink", "stage", {TOPIC: [b"a"]})
        (path,) = (tmp_path / "3" / "pieces").iterdir()
        content = path.read_bytes()
        await cluster[1].backend.discard("sink", ["stage"])
        await until(lambda: everywhere(cluster))
        await cluster[3].stop()
        path.write_bytes(content)
        await cluster[3].start()
        await until(lambda: everywhere(cluster))

    run_cluster(scenario, tmp_path, starts=False)


def test_a_check_of_a_stopped_node_finds_its_pieces_in_order(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 1 << 20)
        await publish_values(cluster[1].backend, 1, {TOPIC: [b"published"]})
        await stage_values(cluster[2].backend, "sink", "sealed", {TOPIC: [b"sealed"], OTHER: [b"b"]})
        await cluster[1].backend.stage("sink", "open", 0, piece_of({TOPIC: [b"open"]}))
        for node in cluster.nodes.values():
            await node.kill()

    run_cluster(scenario, tmp_path, starts=False)
    for number in (1, 2, 3):
        report = check_node(ReadOnlyDisk(), tmp_path / str(number))
        assert report.verdict is Verdict.OK, report.findings
        found = [finding.found for finding in report.findings if finding.kind == "pieces"]
        assert found == ["1 pieces, 1 writes", "2 pieces, 1 writes", "1 pieces, 1 writes"]


def test_a_check_reports_pieces_that_a_publication_lacks(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 1 << 20)
        await publish_values(cluster[1].backend, 1, {TOPIC: [b"published"]})
        # As after a kill, before segments are synced: a start applies the publication again.
        shutil.copytree(tmp_path / "1", tmp_path / "killed")

    run_cluster(scenario, tmp_path, starts=False)
    assert check_node(ReadOnlyDisk(), tmp_path / "killed").verdict is Verdict.OK
    for path in (tmp_path / "killed" / "pieces").iterdir():
        path.unlink()
    report = check_node(ReadOnlyDisk(), tmp_path / "killed")
    [found] = [each for each in report.findings if each.verdict is Verdict.DAMAGED]
    assert (found.where, found.found) == (
        "topic-0",
        "publication 1 needs 1 pieces that are missing or damaged: not ready",
    )


def test_a_dump_shows_pieces_of_stages_where_they_are_and_which_entries_name_them(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 1 << 20)
        await publish_values(cluster[1].backend, 1, {TOPIC: [b"a", b"b"], OTHER: [b"c"]})
        await stage_values(cluster[2].backend, "sink", "sealed", {TOPIC: [b"d"]})
        for node in cluster.nodes.values():
            await node.kill()

    run_cluster(scenario, tmp_path, starts=False)
    for number in (1, 2, 3):
        lines = list(dump(ReadOnlyDisk(), tmp_path / str(number), records=True))
        assert [line for line in lines if line.what == "damage"] == []
        assert [line.fields["stage"] for line in lines if line.what == "pieces"] == [1, 2]
        pieces = [line.fields for line in lines if line.what == "piece"]
        assert [each["records"] for each in pieces] == [2, 1, 1]
        named = {
            (piece["stage_number"], line.fields["raft_group"], piece["crc"])
            for line in lines
            if line.what == "entry" and (piece := line.fields.get("staged_piece"))
        }
        assert {(each["raft_group"], each["crc"]) for each in pieces} == {each[1:] for each in named}
        at = next(place for place, line in enumerate(lines) if line.what == "pieces")
        values = [line.fields["value"] for line in lines[at:] if line.what == "record"]
        assert values[:4] == [b"a", b"b", b"c", b"d"]


def test_a_dump_of_damaged_pieces_ends_with_the_reason(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await start(cluster, 1 << 20)
        await stage_values(cluster[1].backend, "sink", "sealed", {TOPIC: [b"a"]})

    run_cluster(scenario, tmp_path, starts=False)
    (path,) = (tmp_path / "1" / "pieces").iterdir()
    whole = path.read_bytes()
    damages = {
        "piece 0 at byte ": whole[:-1] + bytes([whole[-1] ^ 1]),
        "no pieces from byte ": whole + b"behind",
        "no valid header": b"x" + whole[1:],
    }
    for reason, content in damages.items():
        path.write_bytes(content)
        *_, last = dump(ReadOnlyDisk(), path)
        assert last.what == "damage"
        assert last.fields["reason"].startswith(reason), last


# --- the tail of the log --------------------------------------------------------------------------

GROUP, STAGE = 1000, 7


class Tail:
    """A replica that has an entry in its log, which is not applied, and the piece of a stage."""

    def __init__(self, entry: Entry) -> None:
        self.group = RaftGroup(GROUP, RaftStorage(ConfState((1, 2, 3))), 1)
        self.group.storage.append([entry])
        self.stages = {STAGE: 100}
        self.retained_bytes = 0
        pieces, partitions, state = cast("Pieces", self), cast("Partitions", self), cast("SinksState", self)
        self.retention = PieceRetention(cast("Stages", None), pieces, state, partitions, lambda: 0)

    def raft_groups_of(self, stage: int) -> set[int]:
        return {GROUP} if stage in self.stages else set()

    def size_of(self, stage: int) -> int:
        return self.stages.get(stage, 0)

    def remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self.stages[number]

    def is_gone(self, _: int) -> bool:
        return True

    def find_group(self, raft_group: int) -> RaftGroup | None:
        return self.group if raft_group == GROUP else None


def publication_of(stage: int) -> Entry:
    parts = [
        PublishedPart(
            bytes=100,
            records=1,
            stage_number=stage,
            pieces=[0],
            piece_bytes=[100],
            piece_records=[1],
            piece_crcs=[0],
        )
    ]
    command = PartitionCommand(publish_parts=PublishParts(publication=4, parts=parts))
    return Entry(1, 1, data=command.SerializeToString(), kind=EntryType.COMMAND)


def test_a_file_that_an_unapplied_entry_needs_stays_when_a_snapshot_says_that_its_stage_is_gone() -> None:
    tail = Tail(publication_of(STAGE))
    tail.retention.reconcile()
    assert tail.stages == {STAGE: 100}
    tail.group.applied_index = 1
    tail.retention.release()
    assert tail.stages == {}


@pytest.mark.parametrize(
    "entry", [publication_of(STAGE + 1), Entry(1, 1, data=b"batch", kind=EntryType.RECORD_BATCH)]
)
def test_other_entries_keep_no_file(entry: Entry) -> None:
    tail = Tail(entry)
    tail.retention.reconcile()
    assert tail.stages == {}
