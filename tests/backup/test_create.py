"""pixy/backup/create.py: what a backup has, and what the next one fetches."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pixy.backup import (
    Backup,
    BackupOptions,
    BackupProgress,
    Manifest,
    find_backups,
    open_target,
    verify_backup,
)
from pixy.backup.batch_run import BatchRun
from pixy.backup.object_names import partition_folder
from pixy.backup.source import GivenBatches
from pixy.backup.target import Target, put
from pixy.backup.upkeep import partition_batches, read_state
from pixy.errors import CorruptData, NotFound, Unavailable
from pixy.records import OffsetRange, TopicPartition
from tests.backup.logs import TOPIC_ID, LogSource, broken_after, values_in

OPTIONS = BackupOptions(object_bytes=200, bytes_per_second=0, streams=2)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return open_target(str(tmp_path / "target"))


def back_up(
    source: LogSource, target: Target, options: BackupOptions = OPTIONS, time_ms: int = 1
) -> tuple[Manifest, BackupProgress]:
    progress = BackupProgress()
    source.fetched.clear()
    return Backup(source, target, options, lambda: time_ms, progress).run(), progress


def values_of(target: Target, manifest: Manifest) -> list[list[bytes | None]]:
    """Values of each partition of the only topic."""
    (topic,) = manifest.topics
    found = []
    for each in topic.partitions:
        folder = partition_folder(manifest.cluster_id, topic.topic_id, each.partition)
        objects = partition_batches(target, folder, each, BatchRun(each.begin))
        found.append([value for batches in objects for value in values_in(batches)])
    return found


def filled(batches: int = 10, partitions: int = 2) -> LogSource:
    source = LogSource(partitions)
    for number in range(batches):
        for partition in range(partitions):
            source.append(partition, b"%d" % number, b"x" * 50)
    return source


def test_a_backup_has_every_record(target: Target) -> None:
    source = filled()
    manifest, progress = back_up(source, target)
    assert values_of(target, manifest) == [[v for n in range(10) for v in (b"%d" % n, b"x" * 50)]] * 2
    assert (progress.fetched, progress.total, progress.reused_bytes) == (40, 40, 0)
    assert len(manifest.topics[0].partitions[0].objects) > 1
    assert find_backups(target).backups == (manifest,)
    assert list(verify_backup(target, manifest)) == []
    assert (manifest.version, manifest.feature_level, manifest.time_ms) == ("1.0", 9, 5000)
    assert manifest.topics[0].config == {"a": "1"}


def test_the_next_one_fetches_only_what_is_new(target: Target) -> None:
    source = filled()
    first, _ = back_up(source, target)
    source.append(1, b"new")
    second, progress = back_up(source, target, time_ms=2)
    assert [(each.partition.partition, each.begin, each.end) for each in source.fetched] == [(1, 20, 21)]
    assert progress.fetched == 1
    assert progress.reused_bytes == first.size - len(target.get(first.state))
    assert values_of(target, second)[1][-1] == b"new"
    assert [each.id for each in find_backups(target).backups] == [first.id, second.id]


@pytest.mark.parametrize("answers", range(0, 20, 3))
def test_a_broken_one_goes_on_and_is_never_listed(target: Target, answers: int) -> None:
    source = filled()
    source.before_answer = broken_after(answers)
    with pytest.raises(Unavailable, match="the link is cut"):
        back_up(source, target)
    assert find_backups(target) == find_backups(open_target("/nowhere"))
    left = sum(target.sizes("data").values())
    source.stopped.clear()
    source.before_answer = lambda: None
    manifest, progress = back_up(source, target)
    assert progress.reused_bytes == left
    assert progress.fetched_bytes + left == sum(map(len, source.logs[0] + source.logs[1]))
    assert list(verify_backup(target, manifest)) == []


def test_a_torn_object_is_fetched_again(target: Target) -> None:
    source = filled(partitions=1)
    back_up(source, target)
    path = min(target.sizes("data"))
    put(target, path, [target.get(path)[:-1]])
    manifest, _ = back_up(source, target, time_ms=2)
    assert list(verify_backup(target, manifest)) == []


def test_records_that_retention_has_removed_are_left_out(target: Target) -> None:
    source = filled(partitions=1)
    asked = source.topic_ids

    def removes() -> dict[str, bytes]:
        source.remove(0, 13)  # once its ends are read
        return asked()

    source.topic_ids = removes  # type: ignore[method-assign]
    manifest, _ = back_up(source, target)
    (partition,) = manifest.topics[0].partitions
    assert (partition.begin, partition.end) == (13, 20)
    assert values_of(target, manifest)[0] == [v for n in range(6, 10) for v in (b"%d" % n, b"x" * 50)]


def test_a_topic_that_goes_meanwhile_is_left_out(target: Target) -> None:
    source = filled()

    def deleted() -> None:
        source.topic_id = b"another topic..."

    source.before_answer = deleted
    manifest, _ = back_up(source, target, BackupOptions(object_bytes=1, bytes_per_second=0, streams=1))
    assert manifest.topics == ()
    assert source.topic_id != TOPIC_ID


def test_a_topic_that_was_made_anew_before_its_ends_were_read_is_left_out(target: Target) -> None:
    source = filled()
    state = source.state()
    source.state = lambda: state  # type: ignore[method-assign]
    source.topic_id = b"another topic..."
    manifest, _ = back_up(source, target)
    assert manifest.topics == ()
    assert source.fetched == []


def test_damaged_records_end_it(target: Target) -> None:
    source = filled(partitions=1)
    batch = bytearray(source.logs[0][5])
    batch[-1] ^= 1
    source.logs[0][5] = bytes(batch)
    with pytest.raises(CorruptData):
        back_up(source, target)
    assert find_backups(target).backups == ()


def test_an_object_that_is_removed_meanwhile_ends_it(target: Target) -> None:
    source = filled(partitions=1)
    back_up(source, target)
    source.append(0, b"new")

    def removed() -> None:
        target.remove(min(target.sizes("data")))

    source.before_answer = removed
    with pytest.raises(Unavailable, match="was removed meanwhile"):
        back_up(source, target, time_ms=2)
    assert len(find_backups(target).backups) == 1


def test_an_unknown_topic_is_named(target: Target) -> None:
    with pytest.raises(NotFound, match="unknown topic none"):
        back_up(filled(), target, BackupOptions(topics=["none"]))


def test_offsets_are_never_beyond_the_records(target: Target) -> None:
    """The state comes first: what is consumed and committed meanwhile is behind it."""
    source = filled(partitions=1)
    state, ends = source.state, source.ends

    def consumed() -> None:
        source.append(0, b"meanwhile")
        source.offsets = {0: source.end(0)}

    def state_then_consumed() -> list[bytes]:
        taken = state()
        consumed()
        return taken

    def ends_then_consumed(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        found = ends(partitions)
        consumed()
        return found

    consumed()
    source.state, source.ends = state_then_consumed, ends_then_consumed  # type: ignore[method-assign]
    manifest, _ = back_up(source, target)
    (committed,) = [each.offset.offset for each in read_state(target, manifest).offsets()]
    (partition,) = manifest.topics[0].partitions
    assert (committed, partition.end) == (21, 22)


def test_records_that_are_told_of_and_not_given_end_it(target: Target) -> None:
    source = filled(partitions=1)
    source.fetch = lambda wanted: iter([GivenBatches(b"", wanted.end)])  # type: ignore[method-assign]
    with pytest.raises(CorruptData, match="from offset 0 on are told of, and not given"):
        back_up(source, target)
    assert target.sizes("") == {}
