import io
import json
import threading
from typing import Any

import grpc
import pytest

from pixy.cli import messages
from pixy.cli.messages import split_messages
from pixy.proto import kafkapixy_pb2 as pb

from .conftest import Run
from .fake_server import FakePixy, Refused


def message(partition: int, offset: int, value: bytes, **more: Any) -> pb.ConsRs:
    return pb.ConsRs(partition=partition, offset=offset, message=value, **more)


def test_produce_tells_where_the_message_went(pixy: FakePixy, run: Run) -> None:
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


def test_produce_async_does_not_ask_where(pixy: FakePixy, run: Run) -> None:
    pixy.answers["Produce"] = pb.ProdRs(partition=-1, offset=-1)
    assert run("produce", "foo", "x", "--async").stdout == "topic=foo partition=-1 offset=-1\n"
    assert pixy.named("Produce")[0].async_mode


def test_a_header_without_a_value_is_wrong_usage(run: Run) -> None:
    result = run("produce", "foo", "x", "--header", "novalue")
    assert result.exit_code == 2
    assert "is not NAME=VALUE" in result.stderr


@pytest.mark.parametrize("value", [[], ["-"]])
def test_each_line_of_the_input_is_a_message_and_they_are_reported_in_order(
    pixy: FakePixy, run: Run, value: list[str]
) -> None:
    pixy.answers["Produce"] = lambda request: pb.ProdRs(offset=int(request.message or b"-5"))
    lines = [str(number) for number in range(1000)]
    lines[500] = ""
    result = run("produce", "foo", *value, stdin="\n".join(lines) + "\n")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"topic=foo partition=0 offset={line or -5}" for line in lines]
    assert result.stderr.startswith("1000 messages in ")
    assert result.stderr.endswith("/s\n")


def test_many_messages_are_on_their_way_at_once(pixy: FakePixy, run: Run) -> None:
    together = threading.Barrier(8)

    def answer(_: pb.ProdRq) -> pb.ProdRs:
        together.wait(10)  # the server has eight threads: all of them must have a request
        return pb.ProdRs()

    pixy.answers["Produce"] = answer
    assert run("produce", "foo", stdin="x\n" * 16).exit_code == 0


def test_a_failure_stops_with_the_line_and_how_many_were_written(pixy: FakePixy, run: Run) -> None:
    def answer(request: pb.ProdRq) -> pb.ProdRs:
        if request.message == b"bad":
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "too large")
        return pb.ProdRs()

    pixy.answers["Produce"] = answer
    result = run("produce", "foo", stdin="a\nb\nbad\nc\nd\n")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.splitlines()[-1].startswith(
        "pixy: line 3: INVALID_ARGUMENT: too large; 2 written before it, "
    )
    assert len(pixy.named("Produce")) <= 5


def test_after_a_failure_the_rest_of_a_long_input_is_not_sent(pixy: FakePixy, run: Run) -> None:
    def answer(_: pb.ProdRq) -> pb.ProdRs:
        raise Refused(grpc.StatusCode.UNAVAILABLE, "service is shutting down")

    pixy.answers["Produce"] = answer
    result = run("produce", "foo", stdin="x\n" * 5000)
    assert result.exit_code == 1
    assert (
        "pixy: line 1: UNAVAILABLE: service is shutting down; 0 written before it, 0 of the " in result.stderr
    )
    assert len(pixy.named("Produce")) < 5000


@pytest.mark.parametrize("text", [b"a\n\0\0b", b"a\n\0\0b\0"])
def test_messages_may_end_with_a_null_byte(pixy: FakePixy, run: Run, text: bytes) -> None:
    pixy.answers["Produce"] = pb.ProdRs()
    assert run("produce", "foo", "-0", stdin=text).exit_code == 0
    assert sorted(request.message for request in pixy.named("Produce")) == [b"", b"a\n", b"b"]


def test_null_separated_messages_may_be_longer_than_what_is_read_at_once() -> None:
    long = b"x" * 200_000
    assert list(split_messages(io.BytesIO(long + b"\0y\0"), b"\0")) == [long, b"y"]


def test_consume_prints_one_message_and_acknowledges_it(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(2, 5, b"hello"), message(2, 6, b"more")]
    result = run("consume", "foo", "-g", "bar")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert pixy.calls == [
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", no_ack=True)),
        ("Ack", pb.AckRq(topic="foo", group="bar", partition=2, offset=5)),
    ]


def test_the_ack_of_a_message_rides_on_the_request_for_the_next(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, 0, b"a"), message(1, 3, b"b")]
    assert run("consume", "foo", "-g", "bar", "-n", "2").stdout == "a\nb\n"
    assert pixy.calls == [
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", no_ack=True)),
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", ack_partition=0, ack_offset=0)),
        ("Ack", pb.AckRq(topic="foo", group="bar", partition=1, offset=3)),
    ]


def test_no_ack_and_auto_ack_send_no_acks(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, 0, b"a"), message(0, 1, b"b")]
    run("consume", "foo", "-g", "bar", "--no-ack")
    run("consume", "foo", "-g", "bar", "--auto-ack")
    assert pixy.calls == [
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", no_ack=True)),
        ("ConsumeNAck", pb.ConsNAckRq(topic="foo", group="bar", auto_ack=True)),
    ]
    assert run("consume", "foo", "-g", "bar", "--auto-ack", "--no-ack").exit_code == 2


def test_an_empty_poll_is_repeated_until_a_message_comes(pixy: FakePixy, run: Run) -> None:
    def answer(_: pb.ConsNAckRq) -> pb.ConsRs:
        if len(pixy.calls) < 3:
            raise Refused(grpc.StatusCode.NOT_FOUND, "long polling timeout")
        return message(0, 0, b"late")

    pixy.answers["ConsumeNAck"] = answer
    assert run("consume", "foo", "-g", "bar", "--no-ack").stdout == "late\n"
    assert len(pixy.calls) == 3


def test_when_no_message_comes_in_time_it_says_so_and_ends_with_3(run: Run) -> None:
    result = run("consume", "foo", "-g", "bar", "--wait", "0.05")
    assert result.exit_code == 3
    assert result.stderr == "pixy: no message in foo for bar within 0.05 s\n"


def test_when_fewer_messages_come_than_asked_they_are_printed_and_acknowledged(
    pixy: FakePixy, run: Run
) -> None:
    pixy.queue = [message(0, 4, b"a")]
    result = run("consume", "foo", "-g", "bar", "-n", "2", "--wait", "0.05")
    assert (result.exit_code, result.stdout) == (3, "a\n")
    assert result.stderr == "pixy: 1 of 2 messages in foo for bar within 0.05 s\n"
    assert pixy.named("ConsumeNAck")[1].ack_offset == 4


def test_with_count_0_it_goes_on_until_nothing_comes(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, n, b"x") for n in range(20)]
    result = run("consume", "foo", "-g", "bar", "-n", "0", "--wait", "0.05")
    assert (result.exit_code, result.stdout) == (0, "x\n" * 20)


def test_json_names_everything_and_marks_what_is_not_text(pixy: FakePixy, run: Run) -> None:
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


def test_a_value_that_is_not_text_is_printed_as_base64(pixy: FakePixy, run: Run) -> None:
    pixy.queue = [message(0, 0, b"\xff")]
    assert run("consume", "foo", "-g", "bar").stdout == "base64:/w==\n"


def test_if_the_next_poll_fails_the_printed_message_is_acknowledged_on_its_own(
    pixy: FakePixy, run: Run
) -> None:
    def answer(_: pb.ConsNAckRq) -> pb.ConsRs:
        if len(pixy.calls) == 1:
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
    pixy.answers["Produce"] = pb.ProdRs()
    result = run("produce", "foo", stdin="x\n" * 2000)
    assert (result.exit_code, result.stderr) == (1, "")


def test_ack_names_one_message(pixy: FakePixy, run: Run) -> None:
    result = run("ack", "foo", "3", "14", "--group", "bar")
    assert (result.exit_code, result.stdout) == (
        0,
        "acknowledged topic=foo partition=3 offset=14 group=bar\n",
    )
    assert pixy.calls == [("Ack", pb.AckRq(topic="foo", group="bar", partition=3, offset=14))]


def test_ack_of_an_impossible_position_is_wrong_usage(run: Run) -> None:
    assert run("ack", "foo", "0", str(1 << 63), "-g", "bar").exit_code == 2


def test_a_negative_number_is_a_number_and_out_of_range(run: Run) -> None:
    result = run("ack", "foo", "-1", "0", "-g", "g")
    assert result.exit_code == 2
    assert "-1 is not in the range" in result.stderr
