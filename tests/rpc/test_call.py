"""pixy/rpc/call.py: unary calls on a real connection: answers, statuses, deadlines, metadata,
gzip.
"""

import gzip
from collections.abc import AsyncIterator

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from pixy.rpc import GrpcError, GrpcOptions, Status, answer_all, pack_message
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import Answer, RawClient, messages_in, open_client, prefixed
from tests.fakes.waiting import until
from tests.serving.support import NotedReceipt

UNARY, TASK = "/test.Echo/Unary", "/test.Echo/Task"
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


def echoed(answer: Answer) -> bytes:
    assert answer.status == Status.OK, answer
    ((flag, message),) = messages_in(answer.body)
    assert flag == 0
    return BytesValue.FromString(message).value


@pytest.mark.parametrize("path", [UNARY, TASK])
async def test_an_answer_has_headers_one_message_and_a_status(client: RawClient, path: str) -> None:
    answer = await client.call(path, value(b"hello"))
    assert answer.headers == {":status": "200", "content-type": "application/grpc"}
    assert answer.trailers == {"grpc-status": "0"}
    assert echoed(answer) == b"hello"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
async def test_a_request_may_be_cut_anywhere(client: RawClient, step: int) -> None:
    body = prefixed(value(b"x" * 40))
    stream_id = client.begin(UNARY)
    for at in range(0, len(body), step):
        client.data(stream_id, body[at : at + step])
    client.data(stream_id, b"", end=True)
    assert echoed(await client.answer(stream_id)) == b"x" * 40


async def test_a_message_larger_than_the_window_comes_through(client: RawClient) -> None:
    text = bytes(range(256)) * 700
    stream_id = client.begin(UNARY)
    await client.upload(stream_id, prefixed(value(text)))
    assert echoed(await client.answer(stream_id)) == text


@pytest.mark.parametrize("path", [UNARY, TASK])
async def test_an_error_of_a_handler_is_the_status(client: RawClient, path: str) -> None:
    assert (await client.call(path, value(b"fail"))).status == Status.ABORTED


async def test_an_error_has_message_details_and_metadata(client: RawClient) -> None:
    answer = await client.call(UNARY, value(b"fail"))
    assert answer.headers["grpc-message"] == "no: 100 %25%0A%C3%A9%20"
    assert answer.headers["grpc-status-details-bin"] == "CAo"
    assert answer.headers["why-bin"] == "/w"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", Status.UNIMPLEMENTED, "no message"),
        (prefixed(b"", b""), Status.UNIMPLEMENTED, "more than one message"),
        (prefixed(value(b"x"))[:-1], Status.INTERNAL, "ends inside a message"),
        (b"\0\0", Status.INTERNAL, "ends inside a message"),
        (prefixed(b"\xff"), Status.INTERNAL, "does not parse as the method's message"),
        (prefixed(bytes(200_001)), Status.RESOURCE_EXHAUSTED, "grpc.max_message_bytes allows 200000"),
        (prefixed(b"x", flag=1), Status.INTERNAL, "there is no grpc-encoding"),
        (prefixed(b"x", flag=2), Status.INTERNAL, "flag 2"),
    ],
)
async def test_a_request_that_is_not_one_message_is_refused(
    client: RawClient, body: bytes, status: Status, text: str
) -> None:
    stream_id = client.begin(UNARY)
    await client.upload(stream_id, body)
    if not body:
        client.data(stream_id, b"", end=True)
    answer = await client.answer(stream_id)
    assert (answer.status, text in answer.message) == (status, True), answer


async def test_too_large_a_message_is_refused_as_soon_as_its_length_is_known(client: RawClient) -> None:
    stream_id = client.begin(UNARY)
    client.data(stream_id, prefixed(bytes(200_001))[:5])
    assert (await client.answer(stream_id)).status == Status.RESOURCE_EXHAUSTED
    assert echoed(await client.call(UNARY, value(b"next"))) == b"next"


async def test_too_large_a_message_in_one_piece_is_refused() -> None:
    async with open_echo(GrpcOptions(message_bytes_max=100)) as echo, open_client(echo.address) as client:
        assert echoed(await client.call(UNARY, value(bytes(98)))) == bytes(98)
        assert (await client.call(UNARY, value(bytes(99)))).status == Status.RESOURCE_EXHAUSTED


async def test_incomplete_requests_are_bounded_per_connection(echo: EchoServer, client: RawClient) -> None:
    parts = prefixed(bytes(190_000))[:120_000]
    streams = [client.begin(UNARY) for _ in range(3)]
    for stream_id in streams:
        await client.upload(stream_id, parts, end=False)
    last = await client.answer(streams[-1])
    assert (last.status, "incomplete requests" in last.message) == (Status.RESOURCE_EXHAUSTED, True)
    async with open_client(echo.address) as other:
        assert echoed(await other.call(UNARY, value(b"x"))) == b"x"
    # What is given up leaves room.
    client.reset(streams[0])
    again = client.begin(UNARY)
    await client.upload(again, prefixed(value(b"y" * 100_000)))
    assert echoed(await client.answer(again)) == b"y" * 100_000


async def test_the_deadline_is_kept_and_the_work_cancelled(echo: EchoServer, client: RawClient) -> None:
    answer = await client.call(UNARY, value(b"hold"), [("grpc-timeout", "30m")])
    assert answer.status == Status.DEADLINE_EXCEEDED
    (call, work) = echo.echo.held[0]
    assert work.cancelled.is_set()
    call.answer(BytesValue())  # too late, and harmless
    assert echoed(await client.call(UNARY, value(b"next"))) == b"next"
    assert echo.server.counters.deadlines == 1


async def test_the_deadline_cancels_a_task(echo: EchoServer, client: RawClient) -> None:
    answer = await client.call(TASK, value(b"hold"), [("grpc-timeout", "30m")])
    assert answer.status == Status.DEADLINE_EXCEEDED
    await echo.echo.cancelled.wait()


@pytest.mark.slow
async def test_an_answered_call_has_no_deadline(echo: EchoServer, client: RawClient) -> None:
    assert echoed(await client.call(UNARY, value(b"x"), [("grpc-timeout", "20S")])) == b"x"
    assert (await client.call(UNARY, value(b"hold"), [("grpc-timeout", "40m")])).status == 4
    assert echo.server.counters.deadlines == 1
    # Both calls are forgotten, or their deadlines would gather without end.
    assert len(echo.factory._environment.deadlines) == 0


@pytest.mark.parametrize("gone", ["reset", "disconnected"])
async def test_work_for_a_lost_client_is_cancelled_and_its_answer_undelivered(
    echo: EchoServer, gone: str
) -> None:
    async with open_client(echo.address) as client:
        stream_id = client.request(UNARY, value(b"hold"))
        await echo.echo.arrived.wait()
        call, work = echo.echo.held[0]
        if gone == "reset":
            client.reset(stream_id)
            await work.cancelled.wait()
    await work.cancelled.wait()
    receipt = NotedReceipt()
    call.answer(BytesValue(), receipt)
    assert receipt.said == ["undelivered"]
    assert echo.server.counters.gone == 1


async def test_an_answer_is_delivered_when_the_transport_has_taken_it(
    echo: EchoServer, client: RawClient
) -> None:
    client.request(UNARY, value(b"hold"))
    await client.until(lambda: True)
    await echo.echo.arrived.wait()
    receipt = NotedReceipt()
    echo.echo.held[0][0].answer(BytesValue(), receipt)
    assert receipt.said == []
    await receipt.spoken.wait()
    assert receipt.said == ["delivered"]


async def test_an_answer_is_undelivered_if_the_connection_is_lost_before_it_is_written(
    echo: EchoServer,
) -> None:
    async with open_client(echo.address) as client:
        client.request(UNARY, value(b"hold"))
        await echo.echo.arrived.wait()
        call = echo.echo.held[0][0]
        receipt = NotedReceipt()
        call.answer(BytesValue(), receipt)
        call._connection.link.abort()
        await receipt.spoken.wait()
        assert receipt.said == ["undelivered"]


async def test_metadata_makes_the_round_trip(client: RawClient) -> None:
    fields = [("a", "1"), ("b-bin", "/w=="), ("c-bin", "AA,AQ")]
    answer = await client.call(UNARY, value(b"metadata"), fields)
    assert echoed(answer) == b"metadata"
    for section in (answer.headers, answer.trailers):
        assert (section["a"], section["b-bin"]) == ("1", "/w")
        assert section["c-bin"] in ("AA", "AQ")  # the last of two of the same name


async def test_malformed_binary_metadata_is_internal(client: RawClient) -> None:
    answer = await client.call(UNARY, value(b"metadata"), [("b-bin", "!")])
    assert (answer.status, "b-bin" in answer.message) == (Status.INTERNAL, True)


async def test_a_compressed_request_is_read_and_the_answer_compressed_on_demand(
    client: RawClient,
) -> None:
    fields = [("grpc-encoding", "gzip"), ("grpc-accept-encoding", "identity,deflate,gzip")]
    stream_id = client.begin(UNARY, fields)
    client.data(stream_id, prefixed(gzip.compress(value(b"compress")), flag=1), end=True)
    answer = await client.answer(stream_id)
    assert (answer.status, answer.headers["grpc-encoding"]) == (0, "gzip")
    ((flag, message),) = messages_in(answer.body)
    assert (flag, gzip.decompress(message)) == (1, value(b"compress"))


async def test_a_client_that_does_not_accept_gzip_gets_none(client: RawClient) -> None:
    assert echoed(await client.call(UNARY, value(b"compress"))) == b"compress"


@pytest.mark.parametrize(
    ("packed", "status"),
    [
        (gzip.compress(bytes(10_000_000), mtime=0), Status.RESOURCE_EXHAUSTED),
        (gzip.compress(value(b"x"), mtime=0)[:-9], Status.INTERNAL),
        (b"not gzip", Status.INTERNAL),
    ],
    ids=["bomb", "no end", "not gzip"],
)
async def test_a_request_that_does_not_decompress_is_refused(
    client: RawClient, packed: bytes, status: Status
) -> None:
    stream_id = client.begin(UNARY, [("grpc-encoding", "gzip")])
    client.data(stream_id, prefixed(packed, flag=1), end=True)
    assert (await client.answer(stream_id)).status == status


async def test_an_answer_of_the_wrong_class_of_metadata_is_the_handlers_error(echo: EchoServer) -> None:
    async with open_client(echo.address) as client:
        client.request(UNARY, value(b"hold"))
        await echo.echo.arrived.wait()
        call = echo.echo.held[0][0]
        wrong: list[tuple[str, str | bytes]] = [("grpc-x", "1"), ("a-bin", "text"), ("a", b""), ("te", "x")]
        wrong += [("Upper", "x"), ("a", "x\r\n"), ("a", " x")]
        for key, content in wrong:
            with pytest.raises(ValueError, match=key):
                call.add_initial_metadata(key, content)
            with pytest.raises(ValueError, match=key):
                GrpcError(Status.ABORTED, "", metadata=[(key, content)])
        call.answer(BytesValue(value=b"x"))
        assert echoed(await client.answer(1)) == b"x"
        assert call.peer.startswith("127.0.0.1:")


async def test_calls_that_are_answered_together_may_be_of_any_connections_and_differ() -> None:
    async with (
        open_echo() as echo,
        open_client(echo.address, window=100) as one,
        open_client(echo.address) as two,
    ):
        asked = [one.request(UNARY, value(b"hold")) for _ in range(3)]
        await until(lambda: len(echo.echo.held) == 3)
        others = [two.request(UNARY, value(b"hold")) for _ in range(3)]
        await until(lambda: len(echo.echo.held) == 6)
        one.reset(asked[1])
        await until(lambda: echo.server.open_calls == 5)
        calls = [call for call, _ in echo.echo.held]
        calls[3].add_trailing_metadata("x-a", "b")
        order = [0, 3, 1, 4, 2, 5]
        contents = [bytes([at]) * (200 if at == 2 else 10) for at in order]
        answer_all([calls[at] for at in order], [pack_message(value(each)) for each in contents])
        for at, content in zip(order, contents, strict=True):
            if at == 1:
                continue
            client, stream_id = (one, asked[at]) if at < 3 else (two, others[at - 3])
            if at == 2:
                one.open_window(stream_id, 1000)
            answer = await client.answer(stream_id)
            assert echoed(answer) == content
            assert (answer.trailers.get("x-a") == "b") is (at == 3)
        assert echo.server.open_calls == 0
