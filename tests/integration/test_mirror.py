"""Mirrors between real daemons: every record once, in its partition and order, whatever dies."""

import time
from pathlib import Path

import pytest

from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import NewRecord
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.integration.mirrored import (
    SECONDS,
    Place,
    append,
    mirror_once,
    mirroring,
    offsets_at,
    records_at,
    refused,
    set_offsets,
)

pytestmark = pytest.mark.process

NOW_MS = round(time.time() * 1000)
PARTITIONS = 3


@pytest.fixture
def source(make_daemon: MakeDaemon) -> Daemon:
    daemon = make_daemon(folder="source")
    daemon.start()
    return daemon


@pytest.fixture
def target(make_daemon: MakeDaemon) -> Daemon:
    daemon = make_daemon(folder="target")
    daemon.start()
    return daemon


def place(daemon: Daemon) -> Place:
    return Place(daemon.address)


def create(daemon: Daemon, topic: str, partitions: int = PARTITIONS, **config: str) -> None:
    request = topics_pb.CreateTopicRequest(topic=topic, partitions=partitions, config=config)
    TopicsStub(daemon.channel()).CreateTopic(request)


def describe(daemon: Daemon, topic: str) -> topics_pb.TopicDescription:
    return TopicsStub(daemon.channel()).DescribeTopic(topics_pb.DescribeTopicRequest(topic=topic))


def delete(daemon: Daemon, topic: str) -> None:
    TopicsStub(daemon.channel()).DeleteTopic(topics_pb.DeleteTopicRequest(topic=topic))


def remove_before(daemon: Daemon, topic: str, partition: int, offset: int) -> None:
    removed = topics_pb.RecordsToDelete(partition=partition, before_offset=offset)
    request = topics_pb.DeleteRecordsRequest(topic=topic, partitions=[removed])
    TopicsStub(daemon.channel()).DeleteRecords(request)


def fill(daemon: Daemon, topic: str, name: str, count: int = 10) -> None:
    """Append batches of records with everything that a record may have to each partition."""
    for partition in range(PARTITIONS):
        records = [
            NewRecord(
                None if number % 3 == 0 else b"key %d" % number,
                None if number % 5 == 4 else f"{name} {partition} {number}".encode(),
                [("a", b"1"), ("a", None), ("\u00e9", b"")] if number % 2 else [],
                NOW_MS + number,
            )
            for number in range(count)
        ]
        append(place(daemon), topic, partition, records)


def test_topics_are_copied_with_their_options_and_every_record_once(source: Daemon, target: Daemon) -> None:
    create(source, "orders", retention_ms="86400000", segment_bytes="65536")
    create(source, "other", 1)
    fill(source, "orders", "first")
    events = mirror_once(place(source), place(target))
    assert [each["event"] for each in events] == ["created", "created", "done"]
    assert (events[-1]["messages"], events[-1]["lag"]) == (30, 0)
    assert describe(target, "orders").config == {"retention_ms": "86400000", "segment_bytes": "65536"}
    assert len(describe(target, "orders").partitions) == PARTITIONS
    before = records_at(place(source), "orders")
    assert records_at(place(target), "orders") == before
    assert sum(map(len, before)) == 30
    fill(source, "orders", "second")
    again = mirror_once(place(source), place(target))
    assert [(each["event"], each["messages"]) for each in again] == [("done", 30)]
    assert mirror_once(place(source), place(target))[-1]["messages"] == 0
    assert records_at(place(target), "orders") == records_at(place(source), "orders")
    assert describe(target, "pixy-mirror.default").config == {"retention_ms": "-1", "retention_bytes": "-1"}


def test_a_topic_is_replaced_grows_and_loses_records_at_the_source(source: Daemon, target: Daemon) -> None:
    create(source, "orders")
    fill(source, "orders", "old")
    mirror_once(place(source), place(target))
    old = records_at(place(source), "orders")
    delete(source, "orders")
    create(source, "orders")
    fill(source, "orders", "new", 4)
    events = mirror_once(place(source), place(target))
    assert [each["event"] for each in events] == ["replaced", "done"]
    new = records_at(place(source), "orders")
    assert records_at(place(target), "orders") == [a + b for a, b in zip(old, new, strict=True)]
    # Records that nobody has copied are removed; what is left of their batch is copied.
    fill(source, "orders", "newer", 4)
    remove_before(source, "orders", 1, 6)
    TopicsStub(source.channel()).AlterTopic(topics_pb.AlterTopicRequest(topic="orders", partitions=4))
    append(place(source), "orders", 3, [NewRecord(b"k", b"v", [], NOW_MS)])
    events = mirror_once(place(source), place(target))
    assert [each["event"] for each in events] == ["grown", "gap", "done"]
    gap = events[1]
    assert (gap["topic"], gap["partition"], gap["from"], gap["to"]) == ("orders", 1, 4, 6)
    copied = records_at(place(target), "orders")
    assert copied[0] == old[0] + records_at(place(source), "orders")[0]
    assert [each.value for each in copied[1][14:]] == [b"newer 1 2", b"newer 1 3"]
    assert [each.value for each in copied[3]] == [b"v"]


def test_what_a_mirror_must_not_do_is_an_error_with_a_name(source: Daemon, target: Daemon) -> None:
    assert "no topic of the source matches" in refused(place(source), place(target))
    create(source, "orders")
    fill(source, "orders", "x", 2)
    assert "they are one cluster" in refused(place(source), place(source))
    create(target, "orders")
    fill(target, "orders", "y", 2)
    text = refused(place(source), place(target))
    assert "topic orders has records at the target, in 3 partitions" in text
    delete(target, "orders")
    mirror_once(place(source), place(target))
    delete(target, "orders")
    assert "topic orders was deleted at the target" in refused(place(source), place(target))
    create(target, "orders")
    assert "topic orders was deleted at the target and made anew" in refused(place(source), place(target))
    assert "127.0.0.1:1" in refused(Place("127.0.0.1:1"), place(target))
    mirror_once(place(source), place(target), "--name", "anew")
    assert records_at(place(target), "orders") == records_at(place(source), "orders")


def test_of_two_mirrors_of_a_name_the_first_one_ends(source: Daemon, target: Daemon, tmp_path: Path) -> None:
    create(source, "orders")
    fill(source, "orders", "x")
    log = tmp_path / "log"
    with mirroring(place(source), place(target), log) as first:
        until_blocking(lambda: records_at(place(target), "orders") == records_at(place(source), "orders"))
        mirror_once(place(source), place(target))
        fill(source, "orders", "y")
        assert first.wait(SECONDS) == 1
        assert "another mirror of the name default has begun" in log.read_text()
    mirror_once(place(source), place(target))
    assert records_at(place(target), "orders") == records_at(place(source), "orders")


def test_offsets_of_groups_are_carried_and_translated(source: Daemon, target: Daemon) -> None:
    create(source, "orders")
    fill(source, "orders", "x")
    remove_before(source, "orders", 0, 4)
    set_offsets(place(source), "orders", "ahead", {0: 6, 1: 10})
    set_offsets(place(source), "orders", "behind", {0: 2})
    events = mirror_once(place(source), place(target), "--groups")
    assert events[-1]["offsets"] == 3
    assert offsets_at(place(target), "orders", "ahead") == {0: 2, 1: 10}
    assert offsets_at(place(target), "orders", "behind") == {0: 0}
    # Nobody has used the group at the target: it goes back with the source.
    set_offsets(place(source), "orders", "ahead", {0: 5, 1: 10, 2: 1})
    mirror_once(place(source), place(target), "--groups")
    assert offsets_at(place(target), "orders", "ahead") == {0: 1, 1: 10, 2: 1}
    # A consumer has: it goes on from there, and never back.
    set_offsets(place(target), "orders", "ahead", {0: 4, 1: 3})
    mirror_once(place(source), place(target), "--groups")
    assert offsets_at(place(target), "orders", "ahead") == {0: 4, 1: 10, 2: 1}


def test_offsets_beyond_what_is_there_wait_for_it(source: Daemon, target: Daemon) -> None:
    create(source, "orders", 1)
    append(place(source), "orders", 0, [NewRecord(None, b"1", [], NOW_MS)])
    set_offsets(place(source), "orders", "far", {0: 100})
    mirror_once(place(source), place(target), "--groups")
    assert offsets_at(place(target), "orders", "far") == {0: 1}
    append(place(source), "orders", 0, [NewRecord(None, b"2", [], NOW_MS)])
    mirror_once(place(source), place(target), "--groups")
    assert offsets_at(place(target), "orders", "far") == {0: 2}


def test_the_direction_is_turned_and_turned_again(source: Daemon, target: Daemon) -> None:
    create(source, "orders")
    fill(source, "orders", "one")
    remove_before(source, "orders", 0, 4)
    set_offsets(place(source), "orders", "group", {0: 5, 1: 2})
    mirror_once(place(source), place(target), "--groups")
    # Clients go to the target.
    fill(target, "orders", "two")
    set_offsets(place(target), "orders", "group", {0: 8, 1: 3})
    text = refused(place(target), place(source))
    assert "the mirror default copies orders in the other direction" in text
    append(place(source), "orders", 2, [NewRecord(None, b"late", [], NOW_MS)])
    text = refused(place(target), place(source), "--back")
    assert "topic orders has records at the target from offset 10 of partition 2 on" in text
    remove_before(source, "orders", 2, 11)
    events = mirror_once(place(target), place(source), "--back", "--groups")
    assert [each["event"] for each in events] == ["turned", "done"]
    assert events[-1]["messages"] == 30
    assert offsets_at(place(source), "orders", "group") == {0: 12, 1: 3}
    expected = records_at(place(target), "orders")
    found = records_at(place(source), "orders")
    assert found[:2] == expected[:2]
    assert found[2] == expected[2][10:]
    # The former direction has to be turned, too.
    assert "in the other direction" in refused(place(source), place(target))
    fill(source, "orders", "three")
    events = mirror_once(place(source), place(target), "--back", "--groups")
    assert [each["event"] for each in events] == ["turned", "done"]
    assert events[-1]["messages"] == 30
    fill(source, "orders", "four")
    assert mirror_once(place(source), place(target), "--groups")[-1]["messages"] == 30
    found, expected = records_at(place(target), "orders"), records_at(place(source), "orders")
    assert found[:2] == expected[:2]
    assert found[2][10:] == expected[2]


def test_a_topic_that_others_have_written_to_cannot_be_turned(source: Daemon, target: Daemon) -> None:
    create(source, "orders")
    fill(source, "orders", "one", 2)
    mirror_once(place(source), place(target))
    append(place(target), "orders", 1, [NewRecord(None, b"others", [], NOW_MS)])
    fill(source, "orders", "two", 2)
    mirror_once(place(source), place(target))
    text = refused(place(target), place(source), "--back")
    assert "partition 1 of topic orders has 5 records where 4 were copied" in text
