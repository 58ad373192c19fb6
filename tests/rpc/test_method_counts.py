"""Counts of the calls of a method, as clients of a real server cause them."""

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from pixy.metrics import TIME_BOUNDS
from pixy.rpc import Status
from pixy.rpc.methods import MethodCounts, count_together
from tests.fakes.clock import FakeClock
from tests.fakes.echo import open_echo, value
from tests.fakes.grpc_client import open_client
from tests.fakes.waiting import until

ENDS = {
    "Unary": (1, {}),
    "Task": (1, {}),
    "Repeat": (0, {Status.OK: 1}),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_call_is_counted_when_it_has_ended(name: str) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        assert (await client.call(f"/test.Echo/{name}", value(b"2 1"))).status == Status.OK
        (counts,) = (each.counts for each in echo.factory.methods if each.name == f"test.Echo/{name}")
        assert (sum(counts.durations.counts), dict(counts.ended)) == ENDS[name]
        assert 0 <= counts.durations.sum < 5


@pytest.mark.parametrize(("command", "status"), [(b"fail", Status.ABORTED), (b"bug", Status.INTERNAL)])
async def test_an_error_is_counted_by_its_status(command: bytes, status: Status) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        answer = await client.call("/test.Echo/Unary", value(command))
        (counts,) = (each.counts for each in echo.factory.methods if each.name == "test.Echo/Unary")
        assert (sum(counts.durations.counts), dict(counts.ended)) == (0, {answer.status: 1})
        assert answer.status == status


async def test_a_call_whose_client_has_gone_is_cancelled() -> None:
    async with open_echo() as echo:
        async with open_client(echo.address) as client:
            client.request("/test.Echo/Unary", value(b"hold"))
            await echo.echo.arrived.wait()
        (counts,) = (each.counts for each in echo.factory.methods if each.name == "test.Echo/Unary")
        await until(lambda: dict(counts.ended) == {Status.CANCELLED: 1})


async def test_calls_answered_at_once_are_timed_together_and_a_held_one_by_itself() -> None:
    clock = FakeClock()
    async with open_echo(clock=clock) as echo, open_client(echo.address) as client:
        counts = {each.name: each.counts for each in echo.factory.methods}["test.Echo/Unary"]
        held, *others = [client.request("/test.Echo/Unary", value(text)) for text in (b"hold", b"1", b"2")]
        for stream_id in others:
            assert (await client.answer(stream_id)).status == Status.OK
        assert (counts.durations.counts[0], counts.durations.sum) == (2, 0.0)
        clock.advance(0.2)
        ((call, _),) = echo.echo.held
        call.answer(BytesValue())
        assert (await client.answer(held)).status == Status.OK
    assert sum(counts.durations.counts) == 3
    assert counts.durations.counts[TIME_BOUNDS.index(0.25)] == 1
    assert counts.durations.sum == pytest.approx(0.2)


def test_methods_of_calls_answered_together_are_counted_apart() -> None:
    one, other = MethodCounts(), MethodCounts()
    count_together([one, other, one], 0.003)
    assert [sum(each.durations.counts) for each in (one, other)] == [2, 1]
    assert [each.durations.sum for each in (one, other)] == pytest.approx([0.006, 0.003])
