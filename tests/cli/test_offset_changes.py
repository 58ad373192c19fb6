"""Offsets set by rules: what is sent, and what a dry run says."""

import json
from typing import Any

import grpc
import pytest

from pixy.consume.core import AckRange, decode, describe, encode
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.records import NewRecord, build_batch, read_records

from .conftest import Run
from .fake_server import FakePixy, Refused

BASE_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z, the time of the first record; one follows each second."""


def offsets(
    partition: int, begin: int, end: int, offset: int, metadata: str = "", *, is_own: bool = True
) -> pb.PartitionOffset:
    """An offset as a daemon tells it: with acks in words, too, unless they are another program's
    metadata.
    """
    lag = 0 if offset < 0 else end - max(offset, begin)
    return pb.PartitionOffset(
        partition=partition,
        begin=begin,
        end=end,
        count=end - begin,
        offset=offset,
        lag=lag,
        metadata=metadata,
        sparse_acks=describe(offset, decode(offset, metadata)) if is_own else "",
    )


@pytest.fixture(autouse=True)
def committed(pixy: FakePixy) -> dict[tuple[str, str], list[pb.PartitionOffset]]:
    """Offsets by group and topic: foo has two partitions of ten records each."""
    records = [NewRecord(None, b"x", (), BASE_MS + 1000 * number) for number in range(10)]
    pixy.log = {number: list(read_records(build_batch(records))) for number in range(2)}
    by_group = {
        ("bar", "foo"): [offsets(0, 0, 10, 4), offsets(1, 2, 10, 10)],
        ("bar", "empty"): [offsets(0, 0, 0, -1)],
        ("bar", "more"): [offsets(0, 0, 5, 2)],
        ("other", "foo"): [offsets(0, 0, 10, 7, encode(7, [AckRange(8, 9)])), offsets(1, 2, 10, -1)],
    }

    def get(request: pb.GetOffsetsRq) -> pb.GetOffsetsRs:
        none = [offsets(each.partition, each.begin, each.end, -1) for each in by_group["bar", request.topic]]
        return pb.GetOffsetsRs(offsets=by_group.get((request.group, request.topic), none))

    topics = {name: pb.GetTopicMetadataRs() for name in ("foo", "empty", "more")}
    pixy.answers |= {
        "GetOffsets": get,
        "SetOffsets": pb.SetOffsetsRs(),
        "ListTopics": pb.ListTopicRs(topics=topics),
    }
    return by_group


def was_set(pixy: FakePixy) -> dict[str, list[tuple[int, int]]]:
    return {
        request.topic: [(each.partition, each.offset) for each in request.offsets]
        for request in pixy.named("SetOffsets")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--to-earliest"], [(0, -2), (1, -2)]),
        (["--to-latest", "-p", "1"], [(1, -1)]),
        (["--shift-by", "-3"], [(0, 1), (1, 7)]),
        (["--shift-by", "3"], [(0, 7), (1, 10)]),
        (["--shift-by", "-100"], [(0, 0), (1, 2)]),
        (["--to-datetime", "2023-11-14T22:13:23.500Z"], [(0, 4), (1, 4)]),
        (["--to-datetime", "2023-11-15"], [(0, 10), (1, 10)]),
        (["--by-duration", "1h"], [(0, 10), (1, 10)]),
        (["--by-duration", "P20000D"], [(0, 0), (1, 0)]),
        (["--from-group", "other"], [(0, 7)]),
        (["oldest"], [(0, -2), (1, -2)]),
        (["*=newest"], [(0, -1), (1, -1)]),
        (["*=5"], [(0, 5), (1, 5)]),
        (["0=-3"], [(0, 1)]),
        (["1=-3", "*=+2"], [(1, 7), (0, 6)]),
        (["1=2023-11-14T22:13:23.500Z"], [(1, 4)]),
        (["P20000D"], [(0, 0), (1, 0)]),
        (["oldest", "0=7"], [(1, -2), (0, 7)]),
    ],
)
def test_offsets_are_set_by_a_rule(
    pixy: FakePixy, run: Run, args: list[str], expected: list[tuple[int, int]]
) -> None:
    result = run("offsets", "set", "foo", "-g", "bar", *args)
    assert (result.exit_code, was_set(pixy)) == (0, {"foo": expected})


@pytest.mark.parametrize(
    ("args", "again", "skipped"),
    [
        (["--to-earliest"], {0: 4, 1: 8}, {0: 0, 1: 0}),
        (["--to-latest"], {0: 0, 1: 0}, {0: 6, 1: 0}),
        (["0=7", "1=0"], {0: 0, 1: 8}, {0: 3, 1: 0}),
        (["--from-group", "other"], {0: 0}, {0: 4}),
        (["0=oldest"], {0: 4}, {0: 0}),
    ],
)
def test_a_dry_run_says_what_comes_again_and_sets_nothing(
    pixy: FakePixy, run: Run, args: list[str], again: dict[int, int], skipped: dict[int, int]
) -> None:
    result = run("offsets", "set", "foo", *args, "-g", "bar", "--dry-run", "--json")
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    assert {row["partition"]: row["again"] for row in rows} == again
    assert {row["partition"]: row["skipped"] for row in rows} == skipped
    assert was_set(pixy) == {}


def test_acknowledged_messages_above_the_offset_come_again(
    pixy: FakePixy, run: Run, committed: dict[tuple[str, str], list[pb.PartitionOffset]]
) -> None:
    committed["bar", "foo"][0] = offsets(0, 0, 10, 4, encode(4, [AckRange(6, 8)]))
    result = run("offsets", "set", "foo", "0=3", "-g", "bar", "--dry-run")
    assert result.stdout.splitlines() == [
        "TOPIC  PARTITION  BEFORE  AFTER  AGAIN  SKIPPED",
        "foo            0       4      3      3        0",
        "would set 1 partition of foo for bar: 3 messages come again, 0 are skipped",
    ]


def test_what_another_group_has_acknowledged_is_taken_over(pixy: FakePixy, run: Run) -> None:
    run("offsets", "set", "foo", "-g", "bar", "--from-group", "other")
    (request,) = pixy.named("SetOffsets")
    assert request.offsets[0].metadata == encode(7, [AckRange(8, 9)])


def test_metadata_of_another_program_is_not_taken_over_as_acks(
    pixy: FakePixy, run: Run, committed: dict[tuple[str, str], list[pb.PartitionOffset]]
) -> None:
    acks = encode(4, [AckRange(6, 8)])
    committed["bar", "foo"][0] = offsets(0, 0, 10, 4, acks, is_own=False)
    result = run("offsets", "set", "foo", "0=3", "-g", "bar", "--dry-run")
    assert "1 messages come again" in result.stdout
    committed["other", "foo"] = [offsets(0, 0, 10, 4, acks, is_own=False)]
    run("offsets", "set", "foo", "-g", "bar", "--from-group", "other")
    (request,) = pixy.named("SetOffsets")
    assert request.offsets[0].metadata == ""


def test_all_topics_of_the_group_are_set(pixy: FakePixy, run: Run) -> None:
    result = run("offsets", "set", "--all-topics", "-g", "bar", "--to-earliest")
    assert was_set(pixy) == {"foo": [(0, -2), (1, -2)], "more": [(0, -2)]}
    assert result.stdout == "set 3 partitions of 2 topics for bar: 14 messages come again, 0 are skipped\n"


def test_offsets_of_all_topics_are_shown(run: Run) -> None:
    found = json.loads(run("offsets", "get", "-g", "bar", "--json").stdout)
    assert {topic: [each["lag"] for each in entries] for topic, entries in found.items()} == {
        "foo": [6, 0],
        "more": [3],
    }
    rows = [line.split()[:3] for line in run("offsets", "get", "-g", "bar").stdout.splitlines()]
    assert rows == [["TOPIC", "PARTITION", "BEGIN"], ["foo", "0", "0"], ["foo", "1", "2"], ["more", "0", "0"]]


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["foo"], 2, "one of these is needed"),
        (["foo", "0=1", "--to-earliest"], 2, "one of these is needed, and not several"),
        (["foo", "--to-latest", "--to-earliest"], 2, "one of these is needed, and not several"),
        (["--to-latest"], 2, "name either TOPIC or --all-topics"),
        (["foo", "0=1", "-p", "0"], 2, "PARTITION=OFFSET names the partitions"),
        (["foo", "--to-datetime", "noon"], 2, "--to-datetime: 'noon' is neither a time like"),
        (["foo", "--to-latest", "-p", "2"], 1, "topic foo has no partition 2, only 0 to 1"),
        (["empty", "--shift-by", "1"], 1, "cannot shift partitions 0 of empty"),
        (["empty", "--from-group", "other"], 1, "consumer group other has no offsets there"),
    ],
)
def test_what_cannot_be_set_is_said_and_nothing_is_set(
    pixy: FakePixy, run: Run, args: list[str], code: int, reason: str
) -> None:
    result = run("offsets", "set", *args, "-g", "bar")
    assert (result.exit_code, reason in result.stderr, was_set(pixy)) == (code, True, {}), result.stderr


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_is_shown_in_all_topics(pixy: FakePixy, run: Run) -> None:
    held = pb.ConsumerGroups(consumers={"pixy-1": pb.ConsumerPartitions(partitions=[1])})
    pixy.answers["ListConsumers"] = pb.ListConsumersRs(groups={"bar": held})
    assert run("groups", "show", "bar").stdout.splitlines() == [
        "TOPIC  PARTITION  BEGIN  END  OFFSET  LAG  CLIENT",
        "foo            0      0   10       4    6  -",
        "foo            1      2   10      10    0  pixy-1",
        "more           0      0    5       2    3  -",
        "lag 9 in 2 topics",
    ]
    shown = json.loads(run("groups", "show", "bar", "--json").stdout)
    assert (shown["lag"], shown["topics"]["foo"][1]["client"]) == (9, "pixy-1")


def test_a_group_that_is_nowhere_is_an_error(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListConsumers"] = pb.ListConsumersRs()
    result = run("groups", "show", "none")
    assert (result.exit_code, result.stderr) == (
        1,
        "pixy: consumer group none consumes nothing and has no offsets\n",
    )


def test_groups_are_listed(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListGroups"] = topics_pb.ListGroupsResponse(groups=["b", "a"])
    assert run("groups", "list").stdout == "a\nb\n"
    assert json.loads(run("groups", "list", "--json").stdout) == ["a", "b"]


@pytest.mark.parametrize(
    ("args", "topic", "said"),
    [
        (("groups", "delete", "bar", "--yes"), "", "deleted bar\n"),
        (("groups", "delete", "bar", "--topic", "foo", "--yes"), "foo", "deleted offsets of bar in foo\n"),
        (("offsets", "delete", "foo", "-g", "bar", "--yes"), "foo", "deleted offsets of bar in foo\n"),
    ],
)
def test_a_group_or_its_offsets_in_a_topic_are_deleted(
    pixy: FakePixy, run: Run, args: tuple[str, ...], topic: str, said: str
) -> None:
    pixy.answers["DeleteGroup"] = topics_pb.DeleteGroupResponse()
    assert run(*args).stdout == said
    assert json.loads(run(*args, "--json").stdout) == {"group": "bar", "topic": topic or None}
    assert pixy.named("DeleteGroup") == [topics_pb.DeleteGroupRequest(group="bar", topic=topic)] * 2


@pytest.mark.parametrize("args", [("groups", "delete", "bar"), ("offsets", "delete", "foo", "-g", "bar")])
def test_without_a_terminal_offsets_are_not_deleted_unasked(
    pixy: FakePixy, run: Run, args: tuple[str, ...]
) -> None:
    result = run(*args)
    assert (result.exit_code, pixy.calls) == (2, [])
    assert "standard input is not a terminal: confirm with --yes" in result.stderr


def test_the_refusal_to_delete_a_group_names_its_consumers(pixy: FakePixy, run: Run) -> None:
    def refuse(_: object) -> None:
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "consumer group bar has consumers: me")

    pixy.answers["DeleteGroup"] = refuse
    result = run("groups", "delete", "bar", "--yes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "consumer group bar has consumers: me" in result.stderr
