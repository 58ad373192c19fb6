"""pixy/rpc/stream.py: the three streaming kinds, with back-pressure both ways and receipts."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from pixy.http2 import Options
from pixy.rpc import GrpcOptions, Service, Status, StreamCall
from pixy.serving import ServerOptions
from tests.fakes.echo import DESCRIPTOR, EchoServer, open_echo, serve, value
from tests.fakes.grpc_client import Answer, RawClient, messages_in, open_client, prefixed
from tests.fakes.waiting import until
from tests.serving.support import NotedReceipt

COLLECT, REPEAT, CHAT = "/test.Echo/Collect", "/test.Echo/Repeat", "/test.Echo/Chat"
SMALL = GrpcOptions(message_bytes_max=200_000, request_bytes_max=300_000)


@pytest.fixture
async def echo() -> AsyncIterator[EchoServer]:
    async with open_echo(SMALL) as server:
        yield server


@pytest.fixture
async def client(echo: EchoServer) -> AsyncIterator[RawClient]:
    async with open_client(echo.address, window=1_000_000) as client:
        client.open_window(0, 1_000_000)
        yield client


def values(answer: Answer) -> list[bytes]:
    return [BytesValue.FromString(message).value for _, message in messages_in(answer.body)]


@pytest.mark.parametrize("step", [1, 4, 5, 6, 1000])
async def test_many_messages_may_come_cut_anywhere(client: RawClient, step: int) -> None:
    body = prefixed(*(value(b"%d" % number) for number in range(10)))
    stream_id = client.begin(COLLECT)
    for at in range(0, len(body), step):
        client.data(stream_id, body[at : at + step])
    client.data(stream_id, b"", end=True)
    answer = await client.answer(stream_id)
    assert (answer.status, values(answer)) == (0, [b"0,1,2,3,4,5,6,7,8,9"])


async def test_a_request_without_messages_is_answered(client: RawClient) -> None:
    answer = await client.answer(client.begin(COLLECT, end=True))
    assert (answer.status, values(answer)) == (0, [b""])


async def test_many_messages_come_back(client: RawClient) -> None:
    answer = await client.call(REPEAT, value(b"3 2"))
    assert (answer.status, values(answer)) == (0, [bytes(2)] * 3)


async def test_no_message_may_come_back(client: RawClient) -> None:
    answer = await client.call(REPEAT, value(b"0 0"))
    assert (answer.status, bytes(answer.body), answer.headers[":status"]) == (0, b"", "200")


async def test_each_message_is_answered_before_the_next_is_sent(client: RawClient) -> None:
    stream_id = client.begin(CHAT)
    answer = client.answers[stream_id]
    for number in range(5):
        client.data(stream_id, prefixed(value(b"%d" % number)))
        await client.until(lambda wanted=number + 1: len(messages_in(answer.body)) == wanted)  # type: ignore[misc]
    client.data(stream_id, b"", end=True)
    assert (await client.answer(stream_id)).status == 0
    assert values(answer) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_stream_may_end_with_an_error_behind_messages(client: RawClient) -> None:
    stream_id = client.begin(CHAT)
    client.data(stream_id, prefixed(value(b"1"), value(b"fail")))
    answer = await client.answer(stream_id)
    assert (answer.status, answer.trailers["late"], values(answer)) == (Status.ABORTED, "yes", [b"1"])


async def test_a_stream_may_end_with_an_error_before_any_message(client: RawClient) -> None:
    stream_id = client.begin(CHAT)
    client.data(stream_id, prefixed(value(b"fail")))
    answer = await client.answer(stream_id)
    assert (answer.status, answer.headers["late"]) == (Status.ABORTED, "yes")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (REPEAT, b"", Status.UNIMPLEMENTED),
        (REPEAT, prefixed(b"", b""), Status.UNIMPLEMENTED),
        (COLLECT, prefixed(value(b"x"))[:-1], Status.INTERNAL),
        (COLLECT, prefixed(b"\xff"), Status.INTERNAL),
        (COLLECT, prefixed(bytes(200_001))[:5], Status.RESOURCE_EXHAUSTED),
        (CHAT, prefixed(b"x", flag=1), Status.INTERNAL),
    ],
)
async def test_a_request_that_breaks_a_rule_is_refused(
    client: RawClient, path: str, body: bytes, status: Status
) -> None:
    stream_id = client.begin(path)
    client.data(stream_id, body, end=True)
    assert (await client.answer(stream_id)).status == status


async def test_a_message_that_the_handler_does_not_receive_stays_in_the_clients_window(
    echo: EchoServer, client: RawClient
) -> None:
    await client.call("/test.Echo/Unary", value(b"the server's windows are known"))
    stream_id = client.begin(COLLECT)
    client.data(stream_id, prefixed(value(b"wait")))
    await echo.echo.arrived.wait()
    while size := min(client.h2.local_flow_control_window(stream_id), 16_384):
        client.data(stream_id, bytes(size))
    await client.call("/test.Echo/Unary", value(b"everything before has arrived"))
    assert client.h2.local_flow_control_window(stream_id) == 0
    assert echo.echo.received == 1


async def test_a_handler_is_no_faster_than_its_clients_window(echo: EchoServer) -> None:
    async with open_client(echo.address, window=10_000) as client:
        stream_id = client.request(REPEAT, value(b"100 995"))
        answer = client.answers[stream_id]
        await client.until(lambda: len(answer.body) == 10_000)
        await client.call("/test.Echo/Unary", value(b"others are served"))
        assert echo.echo.sent == 9
        client.open_window(0, 200_000)
        client.open_window(stream_id, 200_000)
        await client.answer(stream_id)
        assert (answer.status, values(answer)) == (0, [bytes(995)] * 100)


@pytest.mark.parametrize(("window", "size"), [(10_000, 150_000), (65_000, 70_000)])
async def test_a_handler_goes_on_when_its_clients_window_was_opened_once_and_wide(
    monkeypatch: pytest.MonkeyPatch, window: int, size: int
) -> None:
    # What the server does every second would wake a handler that has been forgotten.
    monkeypatch.setattr("pixy.serving.server._TICK_S", 3600.0)
    # The rest of the first message is more than the transport takes at once, or less.
    async with open_echo(SMALL) as echo, open_client(echo.address, window=window) as client:
        stream_id = client.request(REPEAT, value(b"3 %d" % size))
        answer = client.answers[stream_id]
        await client.until(lambda: len(answer.body) == window)
        client.open_window(0, 1_000_000)
        client.open_window(stream_id, 1_000_000)
        # From here on the client only reads.
        await client.answer(stream_id)
        assert (answer.status, values(answer)) == (0, [bytes(size)] * 3)


@pytest.mark.slow
async def test_a_handler_is_no_faster_than_its_transport(echo: EchoServer) -> None:
    async with open_client(echo.address, window=2**31 - 1) as slow:
        slow.open_window(0, 2**30)
        stream_id = slow.request(REPEAT, value(b"400 100000"))
        async with open_client(echo.address) as other:
            # Sixty calls of another client take long enough to send 300 MB, if nothing held that
            # back.
            for _ in range(60):
                assert (await other.call("/test.Echo/Unary", value(b"x"))).status == 0
        assert 0 < echo.echo.sent < 300
        # Nothing is lost by that: it is more than the server may hold for a connection.
        answer = await slow.answer(stream_id)
        assert (answer.status, len(answer.body)) == (0, 400 * 100_009)


async def test_a_window_that_was_filled_before_the_handler_waited_is_replenished_when_it_waits() -> None:
    small = GrpcOptions(http2=Options(stream_window_bytes=65_535))
    async with open_echo(small) as echo, open_client(echo.address, window=0) as client:
        client.open_window(0, 1_000_000)
        stream_id = client.begin(CHAT)
        await client.call(REPEAT, value(b"0 0"))
        client.data(stream_id, prefixed(value(b"first")))
        await client.until(lambda: bool(client.answers[stream_id].headers))
        # The handler waits for the window of its first answer.
        body, at = prefixed(value(bytes(150_000))), 0
        while size := min(client.h2.local_flow_control_window(stream_id), 16_384):
            client.data(stream_id, body[at : at + size])
            at += size
        await client.call(REPEAT, value(b"0 0"))
        client.open_window(stream_id, 1_000_000)
        await client.upload(stream_id, body[at:])
        assert values(await client.answer(stream_id)) == [b"first", bytes(150_000)]


# --- receipts -------------------------------------------------------------------------------------


async def test_a_message_that_the_transport_took_is_delivered(echo: EchoServer, client: RawClient) -> None:
    echo.echo.receipts = receipts = [NotedReceipt() for _ in range(3)]
    assert (await client.call(REPEAT, value(b"3 10"))).status == 0
    assert [receipt.said for receipt in receipts] == [["delivered"]] * 3


async def test_a_message_is_delivered_when_the_clients_window_has_let_out_its_last_byte(
    echo: EchoServer,
) -> None:
    echo.echo.receipts = receipts = [NotedReceipt() for _ in range(2)]
    async with open_client(echo.address, window=10) as client:
        stream_id = client.request(REPEAT, value(b"2 100"))
        await client.until(lambda: len(client.answers[stream_id].body) == 10)
        client.open_window(stream_id, 90)
        await client.until(lambda: len(client.answers[stream_id].body) == 100)
        assert receipts[0].said == []
        client.open_window(stream_id, 1000)
        await client.answer(stream_id)
        assert [receipt.said for receipt in receipts] == [["delivered"]] * 2


@pytest.mark.parametrize("gone", ["reset", "disconnected"])
async def test_a_message_that_waits_for_a_window_when_the_client_goes_is_undelivered(
    echo: EchoServer, gone: str
) -> None:
    echo.echo.receipts = receipts = [NotedReceipt()]
    async with open_client(echo.address, window=10) as client:
        stream_id = client.request(REPEAT, value(b"1 100"))
        await client.until(lambda: len(client.answers[stream_id].body) == 10)
        if gone == "reset":
            client.reset(stream_id)
            await receipts[0].spoken.wait()
    await receipts[0].spoken.wait()
    assert receipts[0].said == ["undelivered"]


async def test_a_message_that_waits_for_a_window_at_the_deadline_is_delivered_when_it_opens(
    echo: EchoServer,
) -> None:
    echo.echo.receipts = receipts = [NotedReceipt()]
    async with open_client(echo.address, window=10) as client:
        stream_id = client.request(REPEAT, value(b"1 100"), [("grpc-timeout", "30m")])
        await until(lambda: echo.server.counters.deadlines)
        assert receipts[0].said == []
        client.open_window(stream_id, 1000)
        assert (await client.answer(stream_id)).status == Status.DEADLINE_EXCEEDED
        assert receipts[0].said == ["delivered"]


@pytest.mark.slow
@pytest.mark.parametrize("drain", ["announced", "stop", "age"])
async def test_a_message_that_waits_for_a_window_when_a_drain_begins_is_delivered_within_the_grace(
    drain: str,
) -> None:
    limits = ServerOptions(linger_s=1, age_s=0.01 if drain == "age" else 0)
    async with open_echo(SMALL, limits) as echo, open_client(echo.address, window=10) as client:
        echo.echo.receipts = receipts = [NotedReceipt() for _ in range(2)]
        stream_id = client.request(REPEAT, value(b"2 100"))
        await client.until(lambda: len(client.answers[stream_id].body) == 10)
        if drain == "announced":
            echo.server.begin_drain()
        stopping = [asyncio.create_task(echo.server.stop(60))] if drain == "stop" else []
        await client.until(lambda: bool(client.goaways))
        assert (receipts[0].said, echo.echo.sent) == ([], 0)
        client.open_window(stream_id, 1000)
        assert (await client.answer(stream_id)).status == Status.OK
        if drain != "announced":
            await client.until_closed()
        await asyncio.gather(*stopping)
        assert [receipt.said for receipt in receipts] == [["delivered"]] * 2


@pytest.mark.slow
async def test_a_message_that_waits_for_a_window_when_the_grace_is_over_is_undelivered(
    echo: EchoServer,
) -> None:
    echo.echo.receipts = receipts = [NotedReceipt() for _ in range(2)]
    async with open_client(echo.address, window=10) as client:
        stream_id = client.request(REPEAT, value(b"2 100"))
        await client.until(lambda: len(client.answers[stream_id].body) == 10)
        await echo.server.stop(0.1)
        assert [receipt.said for receipt in receipts] == [["undelivered"], []]
        # Its handler was cancelled inside `send`.
        assert (echo.echo.sent, len(echo.server.environment.tasks)) == (0, 0)
        await client.until_closed()
        assert client.goaways[-1].debug == b"the grace period is over"
        assert len(client.answers[stream_id].body) == 10


async def test_a_message_that_cannot_be_serialized_is_undelivered() -> None:
    async def broken(request: BytesValue, call: StreamCall) -> None:
        await call.send(None, receipt)

    receipt, faults = NotedReceipt(), list[BaseException]()
    server, address = await serve([Service(DESCRIPTOR, {"Repeat": broken})], faults)
    async with open_client(address) as client:
        assert (await client.call(REPEAT, value(b""))).status == Status.INTERNAL
    await server.stop(0)
    assert (receipt.said, len(faults)) == (["undelivered"], 1)


@pytest.mark.parametrize("gone", ["reset", "disconnected", "deadline"])
async def test_the_handler_of_a_lost_client_is_cancelled(echo: EchoServer, gone: str) -> None:
    async with open_client(echo.address) as client:
        fields = [("grpc-timeout", "30m")] if gone == "deadline" else []
        stream_id = client.request(REPEAT, value(b"hold"), fields)
        await echo.echo.arrived.wait()
        if gone == "reset":
            client.reset(stream_id)
        if gone == "deadline":
            assert (await client.answer(stream_id)).status == Status.DEADLINE_EXCEEDED
        if gone != "disconnected":
            await echo.echo.cancelled.wait()
    await echo.echo.cancelled.wait()
    assert echo.faults == []


async def test_a_message_larger_than_the_window_comes_through_while_the_handler_waits_for_it(
    client: RawClient,
) -> None:
    text = b"x" * 150_000
    stream_id = client.begin(COLLECT)
    await client.upload(stream_id, prefixed(value(text)))
    assert values(await client.answer(stream_id)) == [text]


@pytest.mark.slow
async def test_the_request_of_a_server_stream_is_not_held_once_it_is_taken(
    echo: EchoServer, client: RawClient
) -> None:
    # Two of them would be too much for requests that are not complete, and more for the client's
    # window.
    body = prefixed(value(b" " * 190_000 + b"1000 100000"))
    for _ in range(30):
        stream_id = client.begin(REPEAT)
        await client.upload(stream_id, body)
        answer = client.answers[stream_id]
        await client.until(lambda answer=answer: bool(answer.headers))  # type: ignore[misc]
        assert not answer.ended, answer
    assert [each.request_bytes for each in echo.server.connection_counters] == [0]
