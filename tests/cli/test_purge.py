"""pixy/cli/purge.py: `pixy topics purge`."""

import json

import pytest

from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb

from .conftest import Run
from .fake_server import FakePixy

RANGES = [(5, 120), (0, 0), (10, 30)]


@pytest.fixture(autouse=True)
def topic(pixy: FakePixy) -> None:
    partitions = [
        topics_pb.PartitionDescription(partition=number, offsets=topics_pb.OffsetRange(begin=begin, end=end))
        for number, (begin, end) in enumerate(RANGES)
    ]
    pixy.answers["DescribeTopic"] = topics_pb.TopicDescription(topic="foo", partitions=partitions)
    pixy.answers["DeleteRecords"] = topics_pb.DeleteRecordsResponse()


def removed(pixy: FakePixy) -> list[tuple[int, int]]:
    return [
        (each.partition, each.before_offset)
        for request in pixy.named("DeleteRecords")
        for each in request.partitions
    ]


@pytest.mark.parametrize(
    ("args", "expected", "said"),
    [
        ((), [(0, 120), (2, 30)], "135 records of foo removed"),
        (("-p", "2"), [(2, 30)], "20 records of foo removed"),
        (("-p", "0", "-p", "2", "--before", "12"), [(0, 12), (2, 12)], "9 records of foo removed"),
        (("-p", "2", "--before", "7"), [], "0 records of foo removed"),
    ],
)
def test_records_below_an_offset_go(
    pixy: FakePixy, run: Run, args: tuple[str, ...], expected: list[tuple[int, int]], said: str
) -> None:
    result = run("topics", "purge", "foo", *args, "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, said)
    assert removed(pixy) == expected


def test_records_before_a_time_go(pixy: FakePixy, run: Run) -> None:
    def find(request: log_pb.ListOffsetsRequest) -> log_pb.ListOffsetsResponse:
        assert {query.timestamp_ms for query in request.queries} == {1_700_000_000_000}
        answers = [log_pb.OffsetAnswer(offset=offset) for offset in (100, -1, -1)]
        return log_pb.ListOffsetsResponse(answers=answers)

    pixy.answers["ListOffsets"] = find
    assert run("topics", "purge", "foo", "--before", "2023-11-14T22:13:20Z", "--yes").exit_code == 0
    assert removed(pixy) == [(0, 100), (2, 30)]


def test_a_dry_run_says_what_would_go_and_removes_nothing(pixy: FakePixy, run: Run) -> None:
    lines = run("topics", "purge", "foo", "--dry-run").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["PARTITION", "BEGIN", "END", "BEFORE", "REMOVED"],
        ["0", "5", "120", "120", "115"],
        ["1", "0", "0", "0", "0"],
        ["2", "10", "30", "30", "20"],
        ["135", "records", "of", "foo", "would", "be", "removed"],
    ]
    shown = json.loads(run("topics", "purge", "foo", "-p", "2", "--dry-run", "--json").stdout)
    assert shown == [{"partition": 2, "begin": 10, "end": 30, "before": 30, "removed": 20}]
    assert removed(pixy) == []


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (("--before", "12", "--yes"), 2, "--before OFFSET needs --partition"),
        (("--before", "7d", "--yes"), 2, "--before: '7d' is neither a time"),
        (("--before", "soon", "--yes"), 2, "--before: 'soon' is neither a time"),
        (("-p", "3", "--yes"), 1, "topic foo has no partition 3, only 0 to 2"),
        (("-p", "2", "--before", "31", "--yes"), 1, "partition 2 of foo ends at 30, before offset 31"),
        ((), 2, "standard input is not a terminal: confirm with --yes"),
    ],
)
def test_what_cannot_be_removed_is_an_error(
    pixy: FakePixy, run: Run, args: tuple[str, ...], code: int, error: str
) -> None:
    result = run("topics", "purge", "foo", *args)
    assert (result.exit_code, error in result.stderr) == (code, True), result.stderr
    assert removed(pixy) == []
