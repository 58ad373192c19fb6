import io
import json
from typing import Any

import grpc
import pytest

from pixy.cli import messages
from pixy.cli.line_writer import split_messages
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.records import read_records

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
    result = run("produce", "foo", stdin="x\n" * 100_000)
    written = len(pixy.values())
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(
        f"pixy: line {written + 1}: UNAVAILABLE: no leader; {written} written before it, "
    )
    assert len(pixy.named("Append")) == 2


UNCERTAIN = {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


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
    result = run("produce", "foo", stdin=f"a\n{large}\n")
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


def test_consume_of_a_missing_topic_says_so_and_creates_nothing(pixy: FakePixy, run: Run) -> None:
    def missing(_: pb.GetTopicMetadataRq) -> pb.GetTopicMetadataRs:
        raise Refused(grpc.StatusCode.NOT_FOUND, "unknown topic foo")

    pixy.answers["GetTopicMetadata"] = missing
    result = run("consume", "foo", "-g", "bar")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "pixy: topic foo does not exist; create it with --create\n"
    assert [name for name, _ in pixy.calls] == ["GetTopicMetadata"]


@pytest.mark.parametrize("exists", [False, True])
def test_consume_creates_a_missing_topic_with_create(pixy: FakePixy, run: Run, exists: bool) -> None:
    def create(request: topics_pb.CreateTopicRequest) -> topics_pb.TopicDescription:
        if exists:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, "there is foo")
        return topics_pb.TopicDescription(topic=request.topic)

    pixy.answers["CreateTopic"] = create
    pixy.queue = [message(2, 5, b"hello")]
    result = run("consume", "foo", "-g", "bar", "--create")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert [name for name, _ in pixy.calls] == ["CreateTopic", "ConsumeNAck", "Ack"]


def test_consume_shows_key_and_offset_when_verbose(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(2, 5, b"hello", key_value=b"k"), message(2, 6, b"\xff", key_undefined=True)]
    assert run("consume", "foo", "-g", "bar", "-v", "-n", "2").stdout == (
        "partition=2 offset=5 key=k\thello\npartition=2 offset=6\tbase64:/w==\n"
    )


def test_consume_prints_one_message_and_acknowledges_it(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(2, 5, b"hello"), message(2, 6, b"more")]
    result = run("consume", "foo", "-g", "bar")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert pixy.consuming == [
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", no_ack=True)),
        ("Ack", pb.AckRq(topic="foo", group="bar", partition=2, offset=5)),
    ]


def test_the_ack_of_a_message_is_sent_with_the_request_for_the_next(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, 0, b"a"), message(1, 3, b"b")]
    assert run("consume", "foo", "-g", "bar", "-n", "2").stdout == "a\nb\n"
    assert pixy.consuming == [
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", no_ack=True)),
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", ack_partition=0, ack_offset=0)),
        ("Ack", pb.AckRq(topic="foo", group="bar", partition=1, offset=3)),
    ]


def test_no_ack_and_auto_ack_send_no_acks(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, 0, b"a"), message(0, 1, b"b")]
    run("consume", "foo", "-g", "bar", "--no-ack")
    run("consume", "foo", "-g", "bar", "--auto-ack")
    assert pixy.consuming == [
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", no_ack=True)),
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", auto_ack=True)),
    ]
    assert run("consume", "foo", "-g", "bar", "--auto-ack", "--no-ack").exit_code == 2


def test_an_empty_poll_is_repeated_until_a_message_arrives(pixy: FakePixy, run: Run) -> None:
    def answer(_: pb.ConsNAckRq) -> pb.ConsRs:
        if len(pixy.consuming) < 3:
            raise Refused(grpc.StatusCode.NOT_FOUND, "long polling timeout")
        return message(0, 0, b"late")

    pixy.answers["ConsumeNAck"] = answer
    assert run("consume", "foo", "-g", "bar", "--no-ack").stdout == "late\n"
    assert len(pixy.consuming) == 3


@pytest.mark.slow
def test_without_a_message_in_time_it_exits_with_3(run: Run) -> None:
    result = run("consume", "foo", "-g", "bar", "--wait", "0.05")
    assert result.exit_code == 3
    assert result.stderr == "pixy: no message in foo for bar within 0.05 s\n"


@pytest.mark.slow
def test_fewer_messages_than_requested_are_printed_and_acknowledged(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, 4, b"a")]
    result = run("consume", "foo", "-g", "bar", "-n", "2", "--wait", "0.05")
    assert (result.exit_code, result.stdout) == (3, "a\n")
    assert result.stderr == "pixy: 1 of 2 messages in foo for bar within 0.05 s\n"
    assert pixy.named("ConsumeNAck")[1].ack_offset == 4


@pytest.mark.slow
def test_with_count_0_it_consumes_until_no_message_arrives(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, n, b"x") for n in range(20)]
    result = run("consume", "foo", "-g", "bar", "-n", "0", "--wait", "0.05")
    assert (result.exit_code, result.stdout) == (0, "x\n" * 20)


def test_json_has_all_fields_and_marks_binary_values(pixy: FakePixy, run: Run) -> None:
    headers = [pb.RecordHeader(key="h", value=b"\xff"), pb.RecordHeader(key="h", value=b"v")]
    pixy.queue = [
        message(0, 0, b"\xfe", key_value=b"k", headers=headers),
        message(0, 1, b"", key_undefined=True),
    ]
    lines = run("consume", "foo", "-g", "bar", "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "topic": "foo",
            "partition": 0,
            "offset": 0,
            "key": "k",
            "value": {"base64": "/g=="},
            "headers": [{"key": "h", "value": {"base64": "/w=="}}, {"key": "h", "value": "v"}],
        },
        {"topic": "foo", "partition": 0, "offset": 1, "key": None, "value": "", "headers": []},
    ]


def test_a_binary_value_is_printed_as_base64(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, 0, b"\xff")]
    assert run("consume", "foo", "-g", "bar").stdout == "base64:/w==\n"


def test_after_a_failed_poll_the_printed_message_is_acknowledged_on_its_own(pixy: FakePixy, run: Run) -> None:
    def answer(_: pb.ConsNAckRq) -> pb.ConsRs:
        if len(pixy.consuming) == 1:
            return message(0, 4, b"a")
        raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")

    pixy.answers["ConsumeNAck"] = answer
    result = run("consume", "foo", "-g", "bar", "-n", "2")
    assert (result.exit_code, result.stdout, result.stderr) == (
        1,
        "a\n",
        "pixy: RESOURCE_EXHAUSTED: too many\n",
    )
    assert pixy.named("Ack") == [pb.AckRq(topic="foo", group="bar", partition=0, offset=4)]


def test_interrupted_between_messages_it_acknowledges_what_was_printed_and_ends_quietly(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixy.queue = [message(0, 4, b"a")]
    take = messages._Consumer._next

    def interrupted(consumer: messages._Consumer, wait: float | None) -> pb.ConsRs | None:
        if consumer.unacked is not None:
            raise KeyboardInterrupt
        return take(consumer, wait)

    monkeypatch.setattr(messages._Consumer, "_next", interrupted)
    result = run("consume", "foo", "-g", "bar", "-n", "0")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "a\n", "")
    assert pixy.named("Ack") == [pb.AckRq(topic="foo", group="bar", partition=0, offset=4)]


def test_a_message_that_could_not_be_printed_is_not_acknowledged(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: bytes) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(messages, "print_line", closed)
    pixy.queue = [message(0, 4, b"a")]
    result = run("consume", "foo", "-g", "bar")
    assert (result.exit_code, result.stderr) == (1, "")
    assert pixy.named("Ack") == []


def test_a_reader_that_closes_the_pipe_ends_produce_quietly(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(messages, "print_line", closed)
    result = run("produce", "foo", "-v", stdin="x\n" * 2000)
    assert (result.exit_code, result.stderr) == (1, "")


def test_ack_names_one_message(pixy: FakePixy, run: Run) -> None:
    result = run("ack", "foo", "3", "14", "--group", "bar")
    assert (result.exit_code, result.stdout) == (
        0,
        "acknowledged topic=foo partition=3 offset=14 group=bar\n",
    )
    assert pixy.consuming == [("Ack", pb.AckRq(topic="foo", group="bar", partition=3, offset=14))]


def test_ack_of_an_impossible_position_is_wrong_usage(run: Run) -> None:
    assert run("ack", "foo", "0", str(1 << 63), "-g", "bar").exit_code == 2


def test_a_negative_number_is_a_number_and_out_of_range(run: Run) -> None:
    result = run("ack", "foo", "-1", "0", "-g", "g")
    assert result.exit_code == 2
    assert "-1 is not in the range" in result.stderr
