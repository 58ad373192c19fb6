"""Checks of a stopped node's whole directory, written by a real node and damaged in every way. A
check changes nothing.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pixy.cluster import FIRST_GROUPS_GROUP, METADATA_GROUP, SINKS_GROUP
from pixy.cluster.log.recovery import recover_node
from pixy.errors import CorruptData, DataDirectoryError
from pixy.inspect import ReadOnlyDisk, Verdict, check_node, dump, node_directories
from pixy.proto.state_pb2 import GroupsCommand, HardState
from pixy.records import NewRecord, OffsetCommit, TopicPartition, build_batch, patch_batch
from pixy.storage import (
    EntryType,
    RealDisk,
    RecordKind,
    UnitRecord,
    read_identity,
    read_partition_identity,
    recover_journal,
)
from pixy.storage.disk.identity import write_partition_identity
from pixy.storage.journal.journal_format import flush_frame, record_head
from tests.cluster.node_clusters import NodeCluster, run_cluster
from tests.cluster.nodes import Cluster, Sizes, commit_command
from tests.cluster.stopped import contents, make_stopped, wrong

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stopped(tmp_path_factory.mktemp("cluster") / "default")


@pytest.fixture
def node(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "default")


def newest(directory: Path, pattern: str) -> Path:
    return sorted(directory.glob(pattern))[-1]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.slow
def test_the_directory_of_a_killed_node_is_ok(node: Path) -> None:
    assert wrong(node) == []
    report = check_node(ReadOnlyDisk(), node)
    by_kind: dict[str, list[str]] = {}
    for finding in report.findings:
        by_kind.setdefault(finding.kind, []).append(finding.where)
    assert by_kind["identity"] == ["identity"]
    assert by_kind["state"] == ["metadata", *[f"groups-{number}" for number in range(8)], "sinks"]
    assert by_kind["partition"] == ["topic-0", "topic-1", "other-0"]
    assert len(by_kind["checkpoint"]) == 2 + 2 * (node / "state" / "metadata").is_dir()
    assert report.records == 43
    found = {finding.where: finding.found for finding in report.findings}
    assert found["topic-0"].startswith("offsets 0 to 39 in 8 segments, ")
    assert found["topic-0"].endswith("; 2 records in the journal to be applied again")
    assert found["topic-1"] == "no synced records"


@pytest.mark.slow
async def test_the_directory_of_a_stopped_node_is_ok_at_every_age(tmp_path: Path) -> None:
    for _ in range(3):
        async with Cluster(tmp_path / "data", Sizes(checkpoint_entries=3)).running() as cluster:
            if not cluster.node.metadata.topics:
                await cluster.create_topic()
            await cluster.append(b"a", b"b")
            await cluster.commit(1)
        assert wrong(tmp_path / "data") == []


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running():
        with pytest.raises(DataDirectoryError, match="is in use by another process: stop the daemon first"):
            check_node(ReadOnlyDisk(), tmp_path / "data")


def test_a_check_releases_the_lock(node: Path) -> None:
    check_node(ReadOnlyDisk(), node)
    lock = RealDisk().lock(node / "lock")
    assert lock is not None
    lock.close()


def test_a_copy_without_a_lock_is_checked_and_gets_none(node: Path) -> None:
    (node / "lock").unlink()
    assert wrong(node) == []


@pytest.mark.slow
def test_flipped_bytes_anywhere_are_found(node: Path) -> None:
    hints = (".index", ".timeindex")
    last = newest(node, "journal/*")
    for path in sorted(each for each in node.rglob("*") if each.is_file() and each.suffix not in hints):
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 12)):
            flip(path, at)
            verdict = check_node(ReadOnlyDisk(), node).verdict
            # The last flush may be torn, and after it there is nothing to lose.
            expected = {Verdict.WARNING, Verdict.DAMAGED} if path == last else {Verdict.DAMAGED}
            assert verdict in expected, (path.name, at)
            path.write_bytes(whole)


def test_every_removed_file_is_missed(node: Path) -> None:
    for path in [node / "identity", *node.glob("topics/*/*.log")]:
        whole = path.read_bytes()
        path.unlink()
        assert check_node(ReadOnlyDisk(), node).verdict is Verdict.DAMAGED, path.name
        path.write_bytes(whole)


def test_every_added_file_is_noticed(node: Path) -> None:
    def add(directory: Path) -> None:
        for place in (".", "topics/topic-0", "state"):
            (directory / place / "notes").write_bytes(b"x")
        (directory / "identity.part").write_bytes(b"x")
        (directory / "topics" / "none-0").mkdir()

    # The verdict of a partition is the worst of its files.
    found = [each for each in wrong(node, add) if each[1] != "topic-0"]
    assert sorted(found) == [
        ("warning", "identity.part", "left from a crash at the first start"),
        ("warning", "none-0", "left from a crash: removed by the next start"),
        ("warning", "notes", "does not belong here"),
        ("warning", "state/notes", "does not belong here"),
        ("warning", "topics/topic-0/notes", "does not belong here"),
    ]


NOT_READY = ": the partition is not ready"


def own(raft_group: int, cluster: bytes = b"") -> Damage:
    """Give the directory `topic-0` to another raft group, or to another cluster."""

    def damage(directory: Path) -> None:
        path = directory / "topics" / "topic-0" / "identity"
        identity = read_partition_identity(RealDisk(), path)
        identity.raft_group = raft_group
        identity.cluster_id = cluster or identity.cluster_id
        write_partition_identity(RealDisk(), path, identity)

    return damage


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda node: (node / "topics/notes").touch(),
            "damaged notes: is not a directory: the next start is refused",
        ),
        (
            lambda node: shutil.copytree(node / "topics/topic-0", node / "topics/topic-2"),
            "damaged topic-2: belongs to raft group 1000, which is not its partition's; no topic has a partition topic-2: "
            "the next start is refused",
        ),
        (
            lambda node: (node / "topics/999-deleted").mkdir(),
            "warning 999-deleted: left from a deletion: removed by the next start",
        ),
        (
            lambda node: (node / "topics/1000-deleted").mkdir(),
            "damaged 1000-deleted: is left from a deletion that never was; no topic has a partition 1000-deleted: "
            "the next start is refused",
        ),
        (
            lambda node: (node / "topics/lost").mkdir(),
            "damaged lost: is not a partition's directory: the next start is refused",
        ),
        (own(1002), f"damaged topic-0: belongs to raft group 1002, which is not its partition's{NOT_READY}"),
        (own(9999), f"damaged topic-0: belongs to raft group 9999, which is not its partition's{NOT_READY}"),
        (own(999), "warning topic-0: left from a deleted topic: removed by the next start"),
        (own(1000, b"c"), "damaged topic-0: belongs to cluster 63, this is "),
        (
            lambda node: (node / "topics/topic-0/identity").unlink(),
            f"damaged topic-0: identity is missing{NOT_READY}",
        ),
        (
            lambda node: flip(node / "topics/topic-0/identity", 30),
            f"damaged topic-0: identity is damaged{NOT_READY}",
        ),
    ],
)
def test_the_owner_of_a_directory_is_checked(node: Path, damage: Damage, expected: str) -> None:
    found = [f"{verdict} {where}: {what}" for verdict, where, what in wrong(node, damage)]
    assert any(each.startswith(expected) for each in found), found
    assert not any("which no topic has" in each for each in found)
    worst = {each.split()[0] for each in found}
    assert worst == {expected.split(maxsplit=1)[0]} or expected.startswith("damaged")


def test_segments_are_checked_without_an_identity_and_not_in_another_partitions_directory(node: Path) -> None:
    """Segments of another partition prove nothing about this one."""

    def judged() -> list[str]:
        findings = check_node(ReadOnlyDisk(), node).findings
        return [each.found[:12] for each in findings if each.where == "topic-0"]

    (node / "topics/topic-0/identity").rename(node / "lost")
    assert judged() == ["identity is ", "offsets 0 to"]
    (node / "lost").rename(node / "topics/topic-0/identity")
    own(1002)(node)
    assert judged() == ["belongs to r"]


def append_flush(node: Path, records: list[UnitRecord]) -> Path:
    """Write a flush to the end of a stopped node's journal; returns its newest file."""
    journal = newest(node, "journal/*")
    owner = read_identity(RealDisk(), node / "identity")
    end = recover_journal(RealDisk(), journal.parent, (owner.cluster_id, owner.node_id)).at
    body = b"".join(record_head(record) + record[-1] for record in records)
    frame = flush_frame(
        owner.cluster_id, end.flush_number, end.file_number, end.position, len(body), len(records)
    )
    journal.write_bytes(journal.read_bytes()[: end.position] + frame + body)
    return journal


@pytest.mark.parametrize("raft_group", [METADATA_GROUP, FIRST_GROUPS_GROUP, SINKS_GROUP])
def test_a_command_of_a_newer_release_is_reported_as_that(node: Path, raft_group: int) -> None:
    owner = read_identity(RealDisk(), node / "identity")
    journal = recover_journal(RealDisk(), node / "journal", (owner.cluster_id, owner.node_id))
    group = journal.groups.get(raft_group)
    index, term = (1, 1) if group is None else (group.last + 1, group.term(group.last))
    unknown = b"\xfa\x07\x01x"
    append_flush(node, [(RecordKind.ENTRY, EntryType.COMMAND, raft_group, index, term, 0, None, unknown)])
    [(verdict, _, found)] = wrong(node)
    assert verdict == "damaged"
    assert "a newer release wrote it: the next start is refused" in found


def stamped(base_offset: int) -> bytes:
    batch = build_batch([NewRecord(None, b"c", (), 1)])
    patch_batch(batch, base_offset, 1)
    return bytes(batch)


@pytest.mark.parametrize("missing", [0, 1])
async def test_relocated_entries_are_counted_and_shown_and_a_gap_in_them_is_damage(
    tmp_path: Path, missing: int
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic(partitions=2)
    indexes = [1, 2 + missing]
    journal = append_flush(
        tmp_path / "data",
        [
            (RecordKind.RELOCATED_ENTRY, EntryType.RECORD_BATCH, 1001, index, 1, 0, None, stamped(offset))
            for offset, index in enumerate(indexes)
        ],
    )
    hole = "raft group 1001 has entries 1 and 3, but not those in between"
    assert wrong(tmp_path / "data") == [("damaged", "topic-1", hole)] * missing
    assert check_node(ReadOnlyDisk(), tmp_path / "data").records == 2 * (1 - missing)
    shown = [line for line in dump(ReadOnlyDisk(), journal) if line.what == "relocated_entry"]
    assert [line.fields["index"] for line in shown] == indexes
    assert {(line.fields["raft_group"], line.fields["records"]) for line in shown} == {(1001, 1)}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (stamped(0) + stamped(1), ""),
        (stamped(1), "base offset 1, expected 0"),
        (stamped(0) + stamped(2), "base offset 2, expected 1"),
    ],
)
async def test_batches_that_do_not_continue_the_log_are_damage_and_refused(
    tmp_path: Path, payload: bytes, expected: str
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic()
    entry = (RecordKind.ENTRY, EntryType.RECORD_BATCHES, 1000, 1, 1, 0, None, payload)
    append_flush(tmp_path / "data", [entry])
    found = [(verdict, what) for verdict, where, what in wrong(tmp_path / "data") if where == "topic-0"]
    if not expected:
        assert found == []
        async with Cluster(tmp_path / "data").running() as cluster:
            assert cluster.values() == [b"c", b"c"]
        return
    # The verdict on the partition is the worst of its findings.
    assert found[0] == ("damaged", f"entry 1 has a batch with {expected}: the next start is refused")
    assert {verdict for verdict, _ in found} == {"damaged"}
    with pytest.raises(CorruptData, match="raft group 1000, entry 1: a batch with base offset"):
        await Cluster(tmp_path / "data").node.start()


@pytest.mark.parametrize(
    ("raft_group", "name", "reason"),
    [
        (1001, "topic-1", "raft group 1001 is applied up to entry 0, but its log begins behind entry 9"),
        (2, "groups-0", "the log of groups-0 begins behind entry 9, but its newest checkpoint goes up to"),
        (1, "metadata", "the log of metadata begins behind entry 9, but its newest checkpoint goes up to"),
    ],
)
async def test_a_reset_without_the_state_that_it_stands_for_is_damage_and_refused(
    tmp_path: Path, raft_group: int, name: str, reason: str
) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        await cluster.create_topic(partitions=2)
    state = HardState(term=1, commit=9, voters=[1]).SerializeToString()
    append_flush(
        tmp_path / "data",
        [
            (RecordKind.LOG_RESET, 0, raft_group, 9, 1, 0, None, state),
            (RecordKind.HARD_STATE, 0, raft_group, 0, 1, 0, None, state),
        ],
    )
    found = [(verdict, where) for verdict, where, what in wrong(tmp_path / "data") if reason in what]
    assert found == [("damaged", name)]
    with pytest.raises(CorruptData, match=reason):
        await Cluster(tmp_path / "data").node.start()


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_is_used(node: Path) -> None:
    damaged = newest(node, "state/groups-0/*")
    [(verdict, where, _)] = wrong(node, lambda _: flip(damaged, 100))
    assert (verdict, where) == ("damaged", str(damaged.relative_to(node)))


def test_a_state_group_without_checkpoints_lacks_its_first_entries(node: Path) -> None:
    found = wrong(node, lambda path: shutil.rmtree(path / "state" / "groups-0"))
    assert [(verdict, where) for verdict, where, _ in found] == [("damaged", "groups-0")]
    assert found[0][2].startswith(
        "raft group 2 is applied up to entry 0, but the journal goes on with entry "
    )


def test_a_lost_journal_is_damage_and_segments_are_checked_nevertheless(node: Path) -> None:
    def lose(directory: Path) -> None:
        shutil.rmtree(directory / "journal")
        flip(newest(directory, "topics/topic-0/*.log"), 30)

    found = wrong(node, lose)
    assert ("damaged", "journal", "no journal files: the next start is refused") in found
    assert [where for _, where, _ in found if where.endswith(".log")]


@pytest.mark.parametrize("left", ["staging", "state", "topics"])
def test_a_lost_journal_is_damage_whatever_other_files_remain(node: Path, left: str) -> None:
    def lose(directory: Path) -> None:
        for name in {"journal", "staging", "state", "topics"} - {left}:
            shutil.rmtree(directory / name, ignore_errors=True)
        (directory / left).mkdir(exist_ok=True)

    found = wrong(node, lose)
    assert ("damaged", "journal", "no journal files: the next start is refused") in found


def test_an_unfinished_file_alone_is_a_lost_journal_as_for_a_start(node: Path) -> None:
    def lose(directory: Path) -> None:
        shutil.rmtree(directory / "journal")
        (directory / "journal").mkdir()
        (directory / "journal" / f"{1:020d}.journal").write_bytes(bytes(100))

    found = wrong(node, lose)
    assert ("damaged", "journal", "no journal files: the next start is refused") in found
    with pytest.raises(DataDirectoryError, match="has no journal files, although"):
        recover_node(RealDisk(), node, bytes)


def test_with_a_damaged_journal_nothing_that_depends_on_it_is_judged(node: Path) -> None:
    oldest = sorted(node.glob("journal/*"))[0]
    found = wrong(node, lambda _: flip(oldest, 64))
    assert {(verdict, where) for verdict, where, _ in found} == {("damaged", f"journal/{oldest.name}")}


async def test_acks_beyond_the_end_are_damage_and_other_strange_offsets_a_warning(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "data").running() as cluster:
        topic = await cluster.create_topic()
        await cluster.append(b"a", b"b")

        async def commit(
            group: str, offset: int, handed_out: int | None = None, *, set: bool = False
        ) -> None:
            command = GroupsCommand.FromString(
                commit_command(offset, group, "topic", 0, cluster.clock.wall_ms(), topic.topic_id)
            )
            command.commit_offsets.set = set
            if handed_out is not None:
                command.commit_offsets.offsets[0].handed_out = handed_out
            await cluster.node.commands.change_group(group, command.SerializeToString())

        await commit("group", 2, 2)
        await commit("ahead", 3, 3)
        await commit("set", 1000, set=True)
        await commit("set later", 2, 2)
        await commit("set later", 1000, set=True)
        await commit("older release", 3)
        await cluster.node.commands.change_group("group", commit_command(1, "group", "gone", 0))
    beyond = "of topic-0, which ends at 2"
    assert sorted((verdict, found) for verdict, _, found in wrong(tmp_path / "data")) == [
        ("damaged", f"group ahead has committed offset 3 {beyond}, and had records below 3"),
        ("warning", "group group has committed offset 1 of gone-0, which no topic has"),
        ("warning", f"group older release has committed offset 3 {beyond}: a client may have set it"),
        ("warning", f"group set has committed offset 1000 {beyond}: a client may have set it"),
        ("warning", f"group set later has committed offset 1000 {beyond}: a client may have set it"),
    ]


@pytest.mark.parametrize("names", [[], ["lock"], ["lock", "identity.part"]])
def test_a_check_of_an_interrupted_first_start_only_warns(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    if not names:
        with pytest.raises(DataDirectoryError, match=r"is empty: there is no node in it$"):
            node_directories(ReadOnlyDisk(), tmp_path)
        return
    assert node_directories(ReadOnlyDisk(), tmp_path) == [tmp_path]
    assert {verdict for verdict, _, _ in wrong(tmp_path)} == {"warning"}


def test_a_data_dir_stands_for_the_clusters_in_it(node: Path) -> None:
    (node.parent / "lost+found").mkdir()
    shutil.copytree(node, node.parent / "journal")
    before = contents(node.parent)
    assert node_directories(ReadOnlyDisk(), node.parent) == [node, node.parent / "journal"]
    assert contents(node.parent) == before
    shutil.rmtree(node)
    assert node_directories(ReadOnlyDisk(), node.parent) == [node.parent / "journal"]


def test_a_directory_without_a_node_is_refused(node: Path, tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match=r"identity is not a directory$"):
        node_directories(ReadOnlyDisk(), node / "identity")
    with pytest.raises(DataDirectoryError, match="nowhere does not exist"):
        node_directories(ReadOnlyDisk(), tmp_path / "nowhere")
    (tmp_path / "some" / "thing").mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match="has no node in it"):
        node_directories(ReadOnlyDisk(), tmp_path / "some")


@pytest.mark.slow
def test_commits_in_partitions_of_other_nodes_are_not_compared_with_an_end(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3, {"replication": "1"})
        for partition in range(3):
            assert await cluster[1].append(b"a", partition=partition) == 0
        committed = {TopicPartition("topic", partition): OffsetCommit(1) for partition in range(3)}
        for group in map(str, range(16)):
            await cluster[1].backend.commit_offsets(group, committed)
        await cluster.stop()

    run_cluster(scenario, tmp_path)
    for number in (1, 2, 3):
        assert wrong(tmp_path / str(number)) == []
