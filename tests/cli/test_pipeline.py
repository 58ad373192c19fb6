from collections.abc import Iterator

import grpc
import pytest

from pixy.cli.pipeline import IN_FLIGHT_MAX, Pipeline
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

from .fake_server import FakePixy, Refused


@pytest.fixture
def stub(pixy: FakePixy) -> Iterator[KafkaPixyStub]:
    with grpc.insecure_channel(pixy.address) as channel:
        yield KafkaPixyStub(channel)


def numbered(count: int) -> Iterator[pb.ProdRq]:
    return (pb.ProdRq(message=str(number).encode()) for number in range(count))


def echo(request: pb.ProdRq) -> pb.ProdRs:
    return pb.ProdRs(offset=int(request.message))


def test_answers_are_reported_in_the_order_of_the_requests(pixy: FakePixy, stub: KafkaPixyStub) -> None:
    pixy.answers["Produce"] = echo
    reported: list[int] = []
    pipeline = Pipeline(stub, 10, lambda answer: reported.append(answer.offset))
    pipeline.run(numbered(2 * IN_FLIGHT_MAX))
    assert reported == list(range(2 * IN_FLIGHT_MAX))
    assert (pipeline.written, pipeline.failure) == (2 * IN_FLIGHT_MAX, None)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_no_more_messages_are_on_their_way_than_allowed(
    pixy: FakePixy, stub: KafkaPixyStub, in_flight: int
) -> None:
    answered = 0

    def answer(request: pb.ProdRq) -> pb.ProdRs:
        return pb.ProdRs(offset=int(request.message) - answered)

    def report(reported: pb.ProdRs) -> None:
        nonlocal answered
        answered += 1
        ahead.append(reported.offset)

    pixy.answers["Produce"] = answer
    ahead: list[int] = []
    Pipeline(stub, 10, report, in_flight).run(numbered(30))
    assert len(ahead) == 30
    assert max(ahead) <= in_flight


def test_after_a_failure_what_is_on_its_way_is_counted(pixy: FakePixy, stub: KafkaPixyStub) -> None:
    def answer(request: pb.ProdRq) -> pb.ProdRs:
        if request.message in {b"2", b"4"}:
            raise Refused(grpc.StatusCode.INTERNAL, f"no {request.message.decode()}")
        return echo(request)

    pixy.answers["Produce"] = answer
    reported: list[int] = []
    pipeline = Pipeline(stub, 10, lambda answer: reported.append(answer.offset))
    pipeline.run(numbered(6))
    assert reported == [0, 1]
    assert (pipeline.written, pipeline.failed_number) == (2, 3)
    assert "no 2" in str(pipeline.failure)
    assert pipeline.sent_after == len(pixy.calls) - 3
    assert pipeline.written_after == len(
        {b"3", b"5"} & {request.message for request in pixy.named("Produce")}
    )


def test_a_report_that_fails_ends_the_run_with_its_error(pixy: FakePixy, stub: KafkaPixyStub) -> None:
    def report(_: pb.ProdRs) -> None:
        raise BrokenPipeError

    pixy.answers["Produce"] = echo
    pipeline = Pipeline(stub, 10, report)
    with pytest.raises(BrokenPipeError):
        pipeline.run(numbered(5000))
    assert len(pixy.calls) < 5000


def test_an_input_that_fails_ends_the_run_after_what_was_sent(pixy: FakePixy, stub: KafkaPixyStub) -> None:
    def broken() -> Iterator[pb.ProdRq]:
        yield from numbered(3)
        raise OSError("input lost")

    pixy.answers["Produce"] = echo
    pipeline = Pipeline(stub, 10, lambda _: None)
    with pytest.raises(OSError, match="input lost"):
        pipeline.run(broken())
    assert pipeline.written == 3
