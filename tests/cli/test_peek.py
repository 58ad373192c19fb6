import json

import grpc
import pytest

from pixy.proto import pixy_log_pb2 as pb
from pixy.records import NewRecord, build_batch, patch_batch

from .conftest import Run
from .fake_server import FakePixy, Refused

NOW_MS = 1_700_000_000_123


@pytest.fixture(autouse=True)
def log(pixy: FakePixy) -> None:
    """Two partitions with three messages and one message."""
    pixy.partitions = 2
    records = [
        NewRecord(b"k", b"first", [("lang", b"en")], NOW_MS),
        NewRecord(None, b"second", (), NOW_MS),
        NewRecord(b"", None, (), NOW_MS),
    ]
    for partition, batch in ((0, records), (1, [NewRecord(None, b"\xff", (), NOW_MS)])):
        entry = pb.PartitionBatches(partition=partition, batches=bytes(build_batch(batch)))
        pixy.append(pb.AppendRequest(partitions=[entry]))


def test_peek_shows_every_message_with_its_fields(pixy: FakePixy, run: Run) -> None:
    time = "time=2023-11-14T22:13:20.123Z"
    assert run("peek", "foo").stdout.splitlines() == [
        f"partition=0 offset=0 {time} key=k lang=en\tfirst",
        f"partition=0 offset=1 {time}\tsecond",
        f"partition=0 offset=2 {time} key= value=null\t",
        f"partition=1 offset=0 {time}\tbase64:/w==",
    ]
    assert {name for name, _ in pixy.calls} == {"DescribeTopics", "ListOffsets", "Fetch"}
    assert not pixy.named("DescribeTopics")[0].create_missing


def test_peek_prints_json(run: Run) -> None:
    first, _, last = map(json.loads, run("peek", "foo", "--json", "--partition", "0").stdout.splitlines())
    assert first == {
        "topic": "foo",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": NOW_MS,
        "key": "k",
        "value": "first",
        "headers": [{"key": "lang", "value": "en"}],
    }
    assert (last["key"], last["value"]) == ("", None)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--partition", "0", "--offset", "1"], [(0, 1), (0, 2)]),
        (["-p", "0", "-o", "3"], []),
        (["--from-end", "1"], [(0, 2), (1, 0)]),
        (["--from-end", "2"], [(0, 1), (0, 2), (1, 0)]),
        (["--from-end", "0"], []),
    ],
)
def test_peek_begins_at_the_given_offset(run: Run, args: list[str], shown: list[tuple[int, int]]) -> None:
    result = run("peek", "foo", "--json", *args)
    assert result.exit_code == 0
    found = map(json.loads, result.stdout.splitlines())
    assert [(entry["partition"], entry["offset"]) for entry in found] == shown


def test_follow_continues_after_the_end_of_each_partition(pixy: FakePixy, run: Run) -> None:
    def fetch(request: pb.FetchRequest) -> pb.FetchResponse:
        (wanted,) = request.ranges
        assert (wanted.from_offset, wanted.to_offset) in {(3, -1), (4, -1), (1, -1)}
        if wanted.partition == 0 and wanted.from_offset == 3:
            batch = build_batch([NewRecord(None, b"new", (), NOW_MS)])
            patch_batch(batch, 3, 0)
            return pb.FetchResponse(batches=bytes(batch), next_offset=4, state=pb.END_OF_RANGE)
        if wanted.partition == 1:
            return pb.FetchResponse(state=pb.END_OF_RANGE)
        return pb.FetchResponse(state=pb.UNKNOWN_PARTITION)

    pixy.answers["Fetch"] = fetch
    result = run("peek", "foo", "--follow", "--from-end", "0")
    assert (result.exit_code, result.stdout) == (
        1,
        "partition=0 offset=3 time=2023-11-14T22:13:20.123Z\tnew\n",
    )
    assert result.stderr == "pixy: foo/0 was deleted\n"


@pytest.mark.slow
def test_follow_goes_on_where_it_was_when_the_daemon_is_back(pixy: FakePixy, run: Run) -> None:
    def fetch(request: pb.FetchRequest) -> pb.FetchResponse:
        (wanted,) = request.ranges
        if wanted.partition or wanted.from_offset > 4:
            return pb.FetchResponse(state=pb.END_OF_RANGE if wanted.partition else pb.UNKNOWN_PARTITION)
        if wanted.from_offset == 4 and len([each for each in asked if each == 4]) < 2:
            asked.append(4)
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the daemon is stopping")
        batch = build_batch([NewRecord(None, b"%d" % wanted.from_offset, (), NOW_MS)])
        patch_batch(batch, wanted.from_offset, 0)
        return pb.FetchResponse(batches=bytes(batch), next_offset=wanted.from_offset + 1)

    asked: list[int] = []
    pixy.answers["Fetch"] = fetch
    result = run("peek", "foo", "-p", "0", "-f", "--from-end", "0", "--raw")
    assert result.stdout == "3\n4\n"
    assert result.stderr.splitlines() == [
        "pixy: UNAVAILABLE: the daemon is stopping; trying again until it answers (not with --no-reconnect)",
        "pixy: foo/0 was deleted",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--since", "2023-11-14T22:13:20.123Z"], [(0, 0), (0, 1), (0, 2), (1, 0)]),
        (["--since", "2023-11-14T22:13:21"], []),
        (["--since", "1h30m"], []),
        (["--since", "PT1H"], []),
        (["--until", "2023-11-14T22:13:20.123+00:00"], []),
        (["--until", "1h"], [(0, 0), (0, 1), (0, 2), (1, 0)]),
        (["-p", "0", "-o", "1", "--until", "2"], [(0, 1)]),
    ],
)
def test_peek_shows_a_range_of_time(
    pixy: FakePixy, run: Run, args: list[str], shown: list[tuple[int, int]]
) -> None:
    result = run("peek", "foo", "--json", *args)
    found = map(json.loads, result.stdout.splitlines())
    assert [(entry["partition"], entry["offset"]) for entry in found] == shown


def test_peek_prints_bytes_as_they_are(run: Run) -> None:
    assert run("peek", "foo", "--raw", "-0", "-K", r":\t").stdout_bytes == (
        b"k:\tfirst\0:\tsecond\0:\t\0:\t\xff\0"
    )
    assert run("peek", "foo", "-p", "0", "--key-separator", "=").stdout == "k=first\n=second\n=\n"


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (["--partition", "2"], 1, "topic foo has no partition 2, only 0 to 1"),
        (["--partition", "0", "--offset", "4"], 1, "foo/0 does not have offset 4: expected 0 to 3"),
        (["--offset", "1"], 2, "--offset needs --partition"),
        (["-p", "0", "--offset", "1", "--from-end", "1"], 2, "mutually exclusive"),
        (["--since", "1h", "--from-end", "1"], 2, "mutually exclusive"),
        (["--since", "yesterday"], 2, "neither a time like"),
        (["--until", "5"], 2, "--until OFFSET needs --partition"),
        (["--until", "1h", "-f"], 2, "mutually exclusive"),
    ],
)
def test_peek_reports_what_it_cannot_show(run: Run, args: list[str], code: int, error: str) -> None:
    result = run("peek", "foo", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in result.stderr


def test_peek_does_not_create_a_topic(pixy: FakePixy, run: Run) -> None:
    pixy.answers["DescribeTopics"] = pb.DescribeTopicsResponse()
    assert run("peek", "foo").stderr == "pixy: topic foo does not exist\n"
