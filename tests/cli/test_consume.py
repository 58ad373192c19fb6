import json
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from pixy.cli.group_consumer import GroupConsumer
from pixy.cli.message_output import MessageOutput, ShownMessage
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb

from .conftest import Run
from .fake_server import FakePixy, Refused


def message(partition: int, offset: int, value: bytes, **more: Any) -> pb.ConsRs:
    return pb.ConsRs(partition=partition, offset=offset, message=value, **more)


def test_consume_of_a_missing_topic_says_so_and_creates_nothing(pixy: FakePixy, run: Run) -> None:
    def missing(_: pb.GetTopicMetadataRq) -> pb.GetTopicMetadataRs:
        raise Refused(grpc.StatusCode.NOT_FOUND, "unknown topic foo")

    pixy.answers["GetTopicMetadata"] = missing
    result = run("consume", "foo", "-g", "bar")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "pixy: topic foo does not exist; create it with --create\n"
    assert [name for name, _ in pixy.calls] == ["GetTopicMetadata"]


def serve_deleted(pixy: FakePixy, looks: int) -> None:
    """Delete the topic before the first message; it is there again at a later look."""
    serve_batches(pixy)
    batch = pixy.answers["ConsumeBatch"]
    pixy.queue = [message(0, 0, b"new")]
    seen = 0

    def find(_: pb.GetTopicMetadataRq) -> pb.GetTopicMetadataRs:
        nonlocal seen
        seen += 1
        if 1 < seen <= looks:
            raise Refused(grpc.StatusCode.NOT_FOUND, "unknown topic foo")
        return pb.GetTopicMetadataRs()

    def consume(request: log_pb.ConsumeBatchRequest) -> log_pb.ConsumeBatchResponse:
        if seen < looks and request.must_exist:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "topic foo was deleted")
        answer: log_pb.ConsumeBatchResponse = batch(request)
        return answer

    pixy.answers |= {"GetTopicMetadata": find, "ConsumeBatch": consume}


@pytest.mark.parametrize("count", ["1", "5"])
def test_consume_ends_when_its_topic_is_deleted(pixy: FakePixy, run: Run, count: str) -> None:
    serve_deleted(pixy, looks=9)
    result = run("consume", "foo", "-g", "bar", "-n", count)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "pixy: topic foo was deleted\n"


def test_consume_without_an_end_waits_until_a_deleted_topic_exists_again(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pixy.cli.group_consumer.time.sleep", lambda _: None)
    serve_deleted(pixy, looks=3)
    result = run("consume", "foo", "-g", "bar", "-n", "0", "--wait", "0.1")
    assert (result.exit_code, result.stdout) == (0, "new\n")
    assert result.stderr == "pixy: topic foo was deleted; waiting until it exists again\n"


def test_consume_with_create_lets_a_deleted_topic_be_created_again(pixy: FakePixy, run: Run) -> None:
    serve_deleted(pixy, looks=9)
    pixy.answers["CreateTopic"] = topics_pb.TopicDescription(topic="foo")
    assert run("consume", "foo", "-g", "bar", "--create").stdout == "new\n"


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


def serve_batches(pixy: FakePixy) -> None:
    """Have the daemon know ConsumeBatch, and hand out five messages of the queue at a time."""

    def answer(request: log_pb.ConsumeBatchRequest) -> log_pb.ConsumeBatchResponse:
        taken = [
            pixy._take(pb.ConsNAckRq()) for _ in range(min(5, request.max_messages, max(1, len(pixy.queue))))
        ]
        messages = [
            log_pb.ConsumedMessage(partition=each.partition, offset=each.offset, value=each.message)
            for each in taken
        ]
        return log_pb.ConsumeBatchResponse(messages=messages)

    pixy.answers["ConsumeBatch"] = answer


def test_messages_at_hand_are_consumed_together(pixy: FakePixy, run: Run) -> None:
    serve_batches(pixy)
    pixy.queue = [message(0, number, b"%d" % number) for number in range(7)]
    result = run("consume", "foo", "-g", "bar", "-n", "7")
    assert (result.exit_code, result.stdout) == (0, "".join(f"{number}\n" for number in range(7)))
    first, second = pixy.named("ConsumeBatch")
    assert (first.max_messages, second.max_messages) == (7, 2)
    assert [each.offset for each in second.acks] == [0, 1, 2, 3, 4]
    assert [each.offset for each in pixy.named("Ack")] == [5, 6]


def test_acks_of_a_batch_that_may_have_arrived_are_not_called_lost(pixy: FakePixy, run: Run) -> None:
    serve_batches(pixy)
    pixy.queue = [message(0, number, b"") for number in range(3)]
    batch = pixy.answers["ConsumeBatch"]
    pixy.answers["ConsumeBatch"] = lambda request: batch(request) if pixy.queue else unavailable(request)
    pixy.answers["Ack"] = unavailable
    result = run("consume", "foo", "-g", "bar", "-n", "0", "--no-reconnect")
    assert result.stderr.splitlines()[0] == (
        "pixy: the acknowledgement of the last 3 messages, up to foo/0 at offset 2, is not confirmed: messages may be "
        "redelivered: UNAVAILABLE: the daemon is stopping"
    )


@pytest.mark.parametrize(("option", "acks", "auto_ack"), [("--no-ack", [], False), ("--auto-ack", [], True)])
def test_batches_are_acknowledged_as_told(
    pixy: FakePixy, run: Run, option: str, acks: list[int], auto_ack: bool
) -> None:
    serve_batches(pixy)
    pixy.queue = [message(0, number, b"") for number in range(6)]
    run("consume", "foo", "-g", "bar", "-n", "6", option)
    assert [(list(each.acks), each.auto_ack) for each in pixy.named("ConsumeBatch")] == [(acks, auto_ack)] * 2


def unavailable(_: object) -> pb.ConsRs:
    raise Refused(grpc.StatusCode.UNAVAILABLE, "the daemon is stopping")


@pytest.mark.slow
def test_consume_goes_on_when_the_daemon_is_back(pixy: FakePixy, run: Run) -> None:
    def answer(request: pb.ConsNAckRq) -> pb.ConsRs:
        calls = len(pixy.consuming)
        return unavailable(request) if calls in (2, 3) else message(0, calls, b"%d" % calls)

    pixy.answers["ConsumeNAck"] = answer
    result = run("consume", "foo", "-g", "bar", "-n", "2")
    assert (result.exit_code, result.stdout) == (0, "1\n4\n")
    assert result.stderr == (
        "pixy: UNAVAILABLE: the daemon is stopping; trying again until it answers (not with --no-reconnect)\n"
    )
    acks = [each.ack_offset for each in pixy.named("ConsumeNAck")]
    assert (acks, pixy.named("Ack")[0].offset) == ([0, 1, 1, 1], 4)


def test_an_ack_that_may_have_arrived_is_not_called_lost(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(3, 7, b"a")]
    pixy.answers["ConsumeNAck"] = lambda request: pixy._take(request) if pixy.queue else unavailable(request)
    pixy.answers["Ack"] = unavailable
    result = run("consume", "foo", "-g", "bar", "-n", "0", "--no-reconnect")
    assert (result.exit_code, result.stdout) == (1, "a\n")
    assert result.stderr.splitlines() == [
        "pixy: the acknowledgement of the last message, foo/3 at offset 7, is not confirmed: the message may be "
        "redelivered: UNAVAILABLE: the daemon is stopping",
        "pixy: UNAVAILABLE: the daemon is stopping",
    ]


def test_a_daemon_that_is_not_back_in_time_is_an_error(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pixy.cli.reconnection._FIRST_PAUSE_SECONDS", 100.0)
    pixy.answers["ConsumeNAck"] = unavailable
    result = run("consume", "foo", "-g", "bar", "--wait", "60")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        "pixy: UNAVAILABLE: the daemon is stopping",
    )


def test_a_null_value_is_told_from_an_empty_one(pixy: FakePixy, run: Run) -> None:
    def two() -> list[pb.ConsRs]:
        return [message(0, 0, b"", key_value=b"k", value_undefined=True), message(0, 1, b"", key_value=b"k")]

    pixy.queue = two()
    assert run("consume", "foo", "-g", "bar", "-n", "2", "-v").stdout == (
        "partition=0 offset=0 key=k value=null\t\npartition=0 offset=1 key=k\t\n"
    )
    pixy.queue = two()
    lines = run("consume", "foo", "-g", "bar", "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == [None, ""]


def test_raw_values_are_bytes_as_they_are(pixy: FakePixy, run: Run) -> None:
    binary = b"\x1b\xff\n"
    for count, args, expected in (
        (1, (), binary),
        (2, (), (binary + b"\n") * 2),
        (2, ("-0",), (binary + b"\0") * 2),
        (2, ("-K", "|"), (b"k|" + binary + b"\n") * 2),
    ):
        pixy.queue = [message(0, at, binary, key_value=b"k") for at in range(count)]
        shown = run("consume", "foo", "-g", "bar", "-n", str(count), "--raw", *args)
        assert shown.stdout_bytes == expected


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
    take = GroupConsumer._next

    def interrupted(consumer: GroupConsumer, wait: float | None, most: int) -> Sequence[ShownMessage]:
        if consumer.unacked:
            raise KeyboardInterrupt
        return take(consumer, wait, most)

    monkeypatch.setattr(GroupConsumer, "_next", interrupted)
    result = run("consume", "foo", "-g", "bar", "-n", "0")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "a\n", "")
    assert pixy.named("Ack") == [pb.AckRq(topic="foo", group="bar", partition=0, offset=4)]


def test_a_message_that_could_not_be_printed_is_not_acknowledged(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(MessageOutput, "flush", closed)
    pixy.queue = [message(0, 4, b"a")]
    result = run("consume", "foo", "-g", "bar")
    assert (result.exit_code, result.stderr) == (1, "")
    assert pixy.named("Ack") == []


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
