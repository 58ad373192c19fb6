import io
import json
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from pixy.cli.message_input import split_messages
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.records import NewRecord, build_batch, read_records

from .conftest import Run
from .fake_server import FakePixy, Refused


def message(partition: int, offset: int, value: bytes, **more: Any) -> pb.ConsRs:
    return pb.ConsRs(partition=partition, offset=offset, message=value, **more)


def test_produce_prints_partition_and_offset(pixy: FakePixy, run: Run) -> None:
    pixy.answers["Produce"] = pb.ProdRs(partition=1, offset=7)
    result = run("produce", "foo", "héllo", "--key", "k", "--header", "a=1", "-H", "a=x=y", "--cluster", "c")
    assert (result.exit_code, result.stdout) == (0, "topic=foo partition=1 offset=7\n")
    (request,) = pixy.named("Produce")
    assert request == pb.ProdRq(
        cluster="c",
        topic="foo",
        key_value=b"k",
        message="héllo".encode(),
        headers=[pb.RecordHeader(key="a", value=b"1"), pb.RecordHeader(key="a", value=b"x=y")],
    )


def test_produce_prints_json_for_programs(pixy: FakePixy, run: Run) -> None:
    pixy.answers["Produce"] = pb.ProdRs(partition=1, offset=7)
    assert json.loads(run("produce", "foo", "x", "--json").stdout) == {
        "topic": "foo",
        "partition": 1,
        "offset": 7,
    }


@pytest.mark.parametrize(("args", "undefined"), [([], True), (["--key", ""], False)])
def test_an_empty_key_is_a_key_and_no_key_is_none(
    pixy: FakePixy, run: Run, args: list[str], undefined: bool
) -> None:
    pixy.answers["Produce"] = pb.ProdRs()
    run("produce", "foo", "x", *args)
    assert pixy.named("Produce")[0].key_undefined is undefined


def test_produce_async_prints_no_offset(pixy: FakePixy, run: Run) -> None:
    pixy.answers["Produce"] = pb.ProdRs(partition=-1, offset=-1)
    assert run("produce", "foo", "x", "--async").stdout == "topic=foo partition=-1 offset=-1\n"
    assert pixy.named("Produce")[0].async_mode


def test_a_header_without_a_value_is_wrong_usage(run: Run) -> None:
    result = run("produce", "foo", "x", "--header", "novalue")
    assert result.exit_code == 2
    assert "is not NAME=VALUE" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("value", [[], ["-"]])
def test_each_line_of_the_input_is_a_message_and_order_is_kept_in_one_partition(
    pixy: FakePixy, run: Run, value: list[str]
) -> None:
    pixy.partitions = 4
    lines = [str(number) for number in range(30_000)]
    lines[500] = ""
    result = run("produce", "foo", *value, "-H", "a=1", stdin="\n".join(lines) + "\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("30000 messages in ")
    assert result.stderr.endswith("/s\n")
    (partition,) = pixy.log
    assert pixy.values(partition) == [line.encode() for line in lines]
    assert {(record.key, *record.headers) for record in pixy.log[partition]} == {(None, ("a", b"1"))}


@pytest.mark.slow
def test_spread_lines_are_in_order_in_each_partition(pixy: FakePixy, run: Run) -> None:
    pixy.partitions = 2
    lines = [b"%d" % number for number in range(30_000)]
    run("produce", "foo", "--spread", stdin=b"\n".join(lines))
    both = [[int(value or b"") for value in pixy.values(number)] for number in range(2)]
    assert all(both)
    assert both == [sorted(numbers) for numbers in both]
    assert sorted(both[0] + both[1]) == list(range(30_000))


def test_a_few_lines_are_spread_over_all_partitions(pixy: FakePixy, run: Run) -> None:
    pixy.partitions = 4
    result = run("produce", "foo", "--spread", "-v", stdin="".join(f"{number}\n" for number in range(100)))
    assert [len(pixy.values(number)) for number in range(4)] == [25] * 4
    shown = [line.split()[1:] for line in result.stdout.splitlines()]
    assert [
        pixy.values(int(partition.removeprefix("partition=")))[int(offset.removeprefix("offset="))]
        for partition, offset in shown
    ] == [b"%d" % number for number in range(100)]


def test_lines_have_a_key_before_the_separator(pixy: FakePixy, run: Run) -> None:
    pixy.partitions = 8
    run("produce", "foo", "--key-separator", r"\t", "--null-value", stdin="bar\ta\tb\n\tx\nbar\t\n")
    found = [(record.key, record.value) for records in pixy.log.values() for record in records]
    assert sorted(found, key=str) == sorted([(b"bar", b"a\tb"), (b"", b"x"), (b"bar", None)], key=str)
    assert pixy.values(2) == [b"a\tb", None]


def test_a_line_without_the_separator_is_named_and_those_before_it_are_written(
    pixy: FakePixy, run: Run
) -> None:
    result = run("produce", "foo", "-K", ":", stdin="a:1\nb\nc:3\n")
    assert (result.exit_code, pixy.values()) == (1, [b"1"])
    assert result.stderr.splitlines()[-1] == "pixy: line 2: no separator ':' after a key; 1 written before it"


def test_what_peek_prints_as_json_can_be_produced(pixy: FakePixy, run: Run) -> None:
    records = [
        NewRecord(b"k", b"first", [("lang", b"en"), ("lang", b"\xff"), ("none", None)], 1000),
        NewRecord(None, None, [], 1001),
        NewRecord(b"\xfe", b"", [], 1002),
        NewRecord(b"", "\u2028\n".encode(), [], 1003),
    ]
    pixy.log[0] = list(read_records(build_batch(records)))
    copied = run("peek", "foo", "--json").stdout_bytes
    pixy.log.clear()
    assert run("produce", "bar", "--from-json", stdin=copied).exit_code == 0
    assert [(each.key, each.value, list(each.headers)) for each in pixy.log[0]] == [
        (each.key, each.value, list(each.headers)) for each in records
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{}", 'expected an object with "value", as consume --json prints it'),
        ('{"value": 1}', 'value is 1, expected a text, null or {"base64": "..."}'),
        ('{"value": {"base64": "?"}}', "value is {'base64': '?'}: "),
        ('{"value": "", "headers": [1]}', 'a header is 1, expected {"key": ..., "value": ...}'),
        ('{"value": "", "valeu": ""}', "unknown field 'valeu'; allowed are headers, key, offset, "),
    ],
)
def test_a_line_that_is_no_message_in_json_is_named(pixy: FakePixy, run: Run, line: str, reason: str) -> None:
    result = run("produce", "foo", "--from-json", stdin=f'{{"value": "a"}}\n{line}\n')
    assert result.stderr.splitlines()[-1].startswith(f"pixy: line 2: {reason}")
    assert pixy.values() == [b"a"]


def test_a_null_value_is_no_empty_one(pixy: FakePixy, run: Run) -> None:
    pixy.answers["Produce"] = pb.ProdRs()
    run("produce", "foo", "-k", "k", "--null-value")
    run("produce", "foo", "", "-k", "k")
    assert [(each.key_value, each.value_undefined) for each in pixy.named("Produce")] == [
        (b"k", True),
        (b"k", False),
    ]
    run("produce", "foo", "-", "-Z", stdin="a\n\n")
    assert pixy.values() == [b"a", None]


def test_a_whole_file_is_one_message(pixy: FakePixy, run: Run, tmp_path: Path) -> None:
    pixy.answers["Produce"] = pb.ProdRs()
    (tmp_path / "file").write_bytes(b"a\n\0\xff\n")
    run("produce", "foo", "--file", str(tmp_path / "file"))
    run("produce", "foo", "--file", "-", stdin=b"b\n")
    assert [each.message for each in pixy.named("Produce")] == [b"a\n\0\xff\n", b"b\n"]


@pytest.mark.parametrize(
    "args",
    [
        ["x", "--null-value"],
        ["x", "--from-json"],
        ["x", "--file", "-"],
        ["-K", ":", "-k", "k"],
        ["-K", ":", "--from-json"],
        ["-K", ""],
    ],
)
def test_forms_of_a_message_that_contradict_each_other_are_wrong_usage(run: Run, args: list[str]) -> None:
    assert run("produce", "foo", *args, stdin="").exit_code == 2


def test_with_a_key_lines_go_to_the_partition_of_the_key(pixy: FakePixy, run: Run) -> None:
    pixy.partitions = 4
    run("produce", "foo", "--key", "bar", stdin="a\nb\n")
    assert pixy.values(2) == [b"a", b"b"]
    assert pixy.log[2][0].key == b"bar"


def test_verbose_prints_partition_and_offset_of_each_line(pixy: FakePixy, run: Run) -> None:
    result = run("produce", "foo", "-v", stdin="a\nb\n")
    assert result.stdout == "topic=foo partition=0 offset=0\ntopic=foo partition=0 offset=1\n"
    result = run("produce", "foo", "--verbose", "--json", stdin="c\n")
    assert json.loads(result.stdout) == {"topic": "foo", "partition": 0, "offset": 2}


def test_lines_after_a_change_of_the_topic_go_to_the_new_partition_of_the_key(
    pixy: FakePixy, run: Run
) -> None:
    def answer(request: log_pb.AppendRequest) -> log_pb.AppendResponse:
        if len(pixy.named("Append")) == 1:
            pixy.partitions = 12
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "topic foo has version 2")
        return pixy.append(request)

    pixy.partitions = 4
    pixy.answers["Append"] = answer
    assert run("produce", "foo", "--key", "B", stdin="a\nb\n").exit_code == 0
    assert pixy.values(7) == [b"a", b"b"]


def refuse_bad(request: log_pb.AppendRequest, pixy: FakePixy) -> log_pb.AppendResponse:
    if any(record.value == b"bad" for record in read_records(request.partitions[0].batches)):
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "too large")
    return pixy.append(request)


def test_a_rejected_line_is_named_and_those_before_it_are_written(pixy: FakePixy, run: Run) -> None:
    pixy.answers["Append"] = lambda request: refuse_bad(request, pixy)
    result = run("produce", "foo", stdin="a\nb\nc\nbad\nd\ne\n")
    assert result.exit_code == 1
    assert pixy.values() == [b"a", b"b", b"c"]
    assert result.stderr.splitlines()[-1] == "pixy: line 4: INVALID_ARGUMENT: too large; 3 written before it"


def test_after_a_failure_nothing_more_is_sent(pixy: FakePixy, run: Run) -> None:
    def answer(request: log_pb.AppendRequest) -> log_pb.AppendResponse:
        if pixy.log:
            result = log_pb.AppendResult(base_offset=-1, code=14, message="no leader")
            return log_pb.AppendResponse(results=[result])
        return pixy.append(request)

    pixy.answers["Append"] = answer
    result = run("produce", "foo", "--no-reconnect", stdin="x\n" * 100_000)
    written = len(pixy.values())
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(
        f"pixy: line {written + 1}: UNAVAILABLE: no leader; {written} written before it, "
    )
    assert len(pixy.named("Append")) == 2


def test_a_line_that_is_too_large_is_not_sent(pixy: FakePixy, run: Run) -> None:
    pixy.max_message_bytes = 10
    result = run("produce", "foo", "-k", "key", stdin=f"{'a' * 7}\n{'b' * 8}\nc\n")
    assert pixy.values() == [b"a" * 7]
    assert result.stderr.splitlines()[-1] == (
        "pixy: line 2: the message has 11 bytes, producer.max_message_bytes allows 10; 1 written before it"
    )


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["call", "partition"])
def test_the_input_waits_for_a_daemon_that_restarts(pixy: FakePixy, run: Run, whole: bool) -> None:
    def answer(request: log_pb.AppendRequest) -> log_pb.AppendResponse:
        if len(pixy.named("Append")) not in (2, 3):
            return pixy.append(request)
        if whole:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "stopping")
        result = log_pb.AppendResult(base_offset=-1, code=14, message="stopping")
        return log_pb.AppendResponse(results=[result])

    pixy.answers["Append"] = answer
    large = "x" * 300_000  # an append of its own
    result = run("produce", "foo", stdin=f"a\n{large}\nb\n")
    assert (result.exit_code, pixy.values()) == (0, [b"a", large.encode(), b"b"])
    lost, _, again = result.stderr.splitlines()
    assert lost == "pixy: UNAVAILABLE: stopping; trying again until it answers (not with --no-reconnect)"
    assert again == "pixy: 1 line was sent again for want of an answer, and may be there twice"


def test_a_daemon_that_never_answered_is_an_error_at_once(pixy: FakePixy, run: Run) -> None:
    def answer(_: log_pb.DescribeTopicsRequest) -> log_pb.DescribeTopicsResponse:
        raise Refused(grpc.StatusCode.UNAVAILABLE, "stopping")

    pixy.answers["DescribeTopics"] = answer
    assert run("produce", "foo", stdin="a\n").stderr == (
        "pixy: line 1: UNAVAILABLE: stopping; 0 written before it\n"
    )


def test_what_is_written_behind_a_line_that_failed_is_said(pixy: FakePixy, run: Run) -> None:
    def answer(request: log_pb.AppendRequest) -> log_pb.AppendResponse:
        response = pixy.append(request)
        for entry, result in zip(request.partitions, response.results, strict=True):
            if entry.partition == 1:
                result.code, result.message = 8, "full"
        return response

    pixy.partitions = 4
    pixy.answers["Append"] = answer
    result = run("produce", "foo", "--spread", stdin="a\nb\nc\nd\n")
    failed = int(result.stderr.split("line ")[1][0])
    behind = f", {4 - failed} behind it" if failed < 4 else ""
    assert result.stderr.splitlines()[-1] == (
        f"pixy: line {failed}: RESOURCE_EXHAUSTED: full; {failed - 1} written before it{behind}"
    )


UNCERTAIN = {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


@pytest.mark.slow
@pytest.mark.parametrize("status", [each for each in grpc.StatusCode if each is not grpc.StatusCode.OK])
@pytest.mark.parametrize("whole", [True, False], ids=["call", "partition"])
def test_lines_are_in_doubt_only_if_they_may_be_written(
    pixy: FakePixy, run: Run, status: grpc.StatusCode, whole: bool
) -> None:
    def answer(request: log_pb.AppendRequest) -> log_pb.AppendResponse:
        if not pixy.log:
            return pixy.append(request)
        if whole:
            raise Refused(status, "no")
        result = log_pb.AppendResult(base_offset=-1, code=status.value[0], message="no")
        return log_pb.AppendResponse(results=[result])

    pixy.answers["Append"] = answer
    large = "x" * 300_000  # an append of its own
    result = run("produce", "foo", "--no-reconnect", stdin=f"a\n{large}\n")
    doubt = ", and perhaps 1 from it on" if status.name in UNCERTAIN else ""
    assert result.exit_code == 1
    said = result.stderr.splitlines()[-1]
    assert said.startswith("pixy: line 2: ")
    assert said.endswith(f"; 1 written before it{doubt}")


def test_the_line_of_several_that_is_too_large_is_found(pixy: FakePixy, run: Run) -> None:
    def answer(request: log_pb.AppendRequest) -> log_pb.AppendResponse:
        if len(request.partitions[0].batches) > 1000:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
        return pixy.append(request)

    pixy.answers["Append"] = answer
    result = run("produce", "foo", stdin=f"a\nb\n{'x' * 1000}\nc\n")
    assert (
        result.stderr.splitlines()[-1] == "pixy: line 3: RESOURCE_EXHAUSTED: too large; 2 written before it"
    )
    assert pixy.values() == [b"a", b"b"]


def test_a_topic_that_produce_must_not_create_is_an_error(pixy: FakePixy, run: Run) -> None:
    pixy.answers["DescribeTopics"] = log_pb.DescribeTopicsResponse()
    result = run("produce", "foo", stdin="x\n")
    assert (result.exit_code, result.stderr) == (
        1,
        "pixy: line 1: topic foo does not exist; 0 written before it\n",
    )


@pytest.mark.parametrize(
    ("stdin", "exit_code", "creates"), [("", 0, []), ("no separator\n", 1, []), ("a:b\n", 0, [True])]
)
def test_a_topic_is_created_with_the_first_message(
    pixy: FakePixy, run: Run, stdin: str, exit_code: int, creates: list[bool]
) -> None:
    def answer(request: log_pb.DescribeTopicsRequest) -> log_pb.DescribeTopicsResponse:
        topic = log_pb.Topic(topic="foo", topic_id=b"i" * 16, version=1, partitions=1)
        return log_pb.DescribeTopicsResponse(topics=[topic] * request.create_missing, partitioner="hash")

    pixy.answers["DescribeTopics"] = answer
    assert run("produce", "foo", "-K", ":", stdin=stdin).exit_code == exit_code
    assert [each.create_missing for each in pixy.named("DescribeTopics")] == [False, *creates]


@pytest.mark.parametrize("text", [b"a\n\0\0b", b"a\n\0\0b\0"])
def test_messages_may_end_with_a_null_byte(pixy: FakePixy, run: Run, text: bytes) -> None:
    assert run("produce", "foo", "-0", stdin=text).exit_code == 0
    assert pixy.values() == [b"a\n", b"", b"b"]


def test_messages_may_be_longer_than_one_read() -> None:
    long = b"x" * 200_000
    found = list(split_messages(io.BytesIO(long + b"\0y\0").read, b"\0"))
    assert [message for messages in found for message in messages] == [long, b"y"]


def test_messages_are_reported_before_more_arrive() -> None:
    pieces = [b"a\nb", b"c\n", b"\n", b""]
    assert list(split_messages(lambda _: pieces.pop(0), b"\n")) == [[b"a"], [b"bc"], [b""]]


def test_a_reader_that_closes_the_pipe_ends_produce_quietly(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys.modules["pixy.cli.connection"], "print_line", closed)
    result = run("produce", "foo", "-v", stdin="x\n" * 2000)
    assert (result.exit_code, result.stderr) == (1, "")
