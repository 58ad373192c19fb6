"""Connections of a real server, with APIs of these tests."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pixy.clock import SystemClock
from pixy.kafka_messages import MESSAGE_APIS
from pixy.kafka_messages.generated.api_versions import ApiVersionsRequest
from pixy.kafka_messages.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from pixy.kafka_messages.generated.list_groups import ListGroupsRequest, ListGroupsResponse
from pixy.kafka_messages.generated.produce import ProduceRequest
from pixy.serving import Server, ServerOptions
from pixy.wire import ApiTable, ServedApi, WireExchange, WireFactory, WireOptions
from tests.fakes.kafka_client import RawKafkaClient, kafka_client
from tests.fakes.waiting import until

HEARTBEAT, LIST_GROUPS, API_VERSIONS, PRODUCE = 12, 16, 18, 0


class Apis:
    """APIs that are answered when a test says so.

    Attributes:
        waiting: heartbeats that are not answered.
        gone: list requests whose client has left.
    """

    def __init__(self) -> None:
        self.waiting: list[WireExchange] = []
        self.gone = 0
        self.released = asyncio.Event()

    def heartbeat(self, exchange: WireExchange, request: HeartbeatRequest) -> HeartbeatResponse | None:
        if request.group_id == "later":
            self.waiting.append(exchange)
            return None
        if request.group_id == "bug":
            raise RuntimeError("a bug of this test")
        return HeartbeatResponse(error_code=request.generation_id)

    async def list_groups(self, exchange: WireExchange, request: ListGroupsRequest) -> ListGroupsResponse:
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.gone += 1
            raise
        await exchange.wait_turn()
        return ListGroupsResponse(error_code=7)

    def produce(self, exchange: WireExchange, request: ProduceRequest) -> None:
        if request.acks:
            exchange.refuse("the test wants it")
        else:
            exchange.answer(None)

    def table(self) -> ApiTable:
        return ApiTable(
            [
                ServedApi(HEARTBEAT, 0, 4, self.heartbeat),
                ServedApi(LIST_GROUPS, 0, 4, self.list_groups),
                ServedApi(PRODUCE, 3, 12, self.produce, has_records=True, shown_from=0),
            ]
        )


class Served:
    """A running server with these APIs."""

    def __init__(self, server: Server, apis: Apis, address: str, faults: list[BaseException]) -> None:
        self.server, self.apis, self.address, self.faults = server, apis, address, faults


@asynccontextmanager
async def serving(options: WireOptions | None = None) -> AsyncIterator[Served]:
    faults: list[BaseException] = []
    server = Server(ServerOptions(), SystemClock(), faults.append, Random(1))
    apis = Apis()
    factory = WireFactory(server.environment, apis.table(), options or WireOptions())
    address = await server.listen("127.0.0.1:0", factory)
    try:
        yield Served(server, apis, address, faults)
    finally:
        await server.stop(0)
    assert server.open_calls == 0


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as found:
        yield found
        assert found.faults == []


@pytest.fixture
async def client(served: Served) -> AsyncIterator[RawKafkaClient]:
    async with kafka_client(served.address) as found:
        yield found


def beat(group: str = "", code: int = 0) -> HeartbeatRequest:
    return HeartbeatRequest(group, code, "member")


async def test_a_request_is_answered_in_its_version(client: RawKafkaClient) -> None:
    for version in range(5):
        assert await client.call(HEARTBEAT, version, beat(code=version)) == HeartbeatResponse(0, version)


async def test_api_versions_has_every_api_in_every_version(client: RawKafkaClient) -> None:
    expected = [(0, 0, 12), (12, 0, 4), (16, 0, 4), (18, 0, 4)]
    for version in range(5):
        answer = await client.call(API_VERSIONS, version, ApiVersionsRequest("tests", "1"))
        assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == expected
        assert answer.error_code == 0


@pytest.mark.parametrize("version", [5, 99, 32767])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    client: RawKafkaClient, version: int
) -> None:
    client.writer.write(struct.pack(">ihhih", 11, API_VERSIONS, version, 42, 0) + b"?")
    frame = await client.frame()
    assert struct.unpack_from(">i", frame) == (42,)
    answer = MESSAGE_APIS[API_VERSIONS].parse_response(0, frame, 4)
    assert answer.error_code == 35
    assert len(answer.api_keys) == 4
    assert (await client.call(HEARTBEAT, 0, beat())).error_code == 0


@pytest.mark.parametrize(
    ("key", "version"), [(HEARTBEAT, 5), (HEARTBEAT, -1), (PRODUCE, 2), (3, 0), (999, 0)]
)
async def test_what_is_not_served_ends_the_connection(client: RawKafkaClient, key: int, version: int) -> None:
    client.writer.write(struct.pack(">ihhih", 10, key, version, 1, 0))
    assert await client.ended()


async def test_answers_come_in_the_order_of_requests(served: Served, client: RawKafkaClient) -> None:
    client.send(HEARTBEAT, 1, beat("later"))
    client.send(LIST_GROUPS, 0, ListGroupsRequest())
    client.send(HEARTBEAT, 1, beat(code=3))
    served.apis.released.set()
    await until(lambda: len(served.apis.waiting) == 1)
    served.apis.waiting[0].answer(HeartbeatResponse(error_code=1))
    assert (await client.response(HEARTBEAT, 1)).error_code == 1
    assert (await client.response(LIST_GROUPS, 0)).error_code == 7
    assert (await client.response(HEARTBEAT, 1)).error_code == 3


async def test_a_request_may_have_no_answer(client: RawKafkaClient) -> None:
    client.send(PRODUCE, 7, ProduceRequest(acks=0))
    assert (await client.call(HEARTBEAT, 0, beat(code=4))).error_code == 4


async def test_a_refused_request_ends_the_connection_behind_earlier_answers(client: RawKafkaClient) -> None:
    client.send(HEARTBEAT, 0, beat(code=4))
    client.send(PRODUCE, 7, ProduceRequest(acks=1))
    client.send(HEARTBEAT, 0, beat(code=5))
    assert (await client.response(HEARTBEAT, 0)).error_code == 4
    assert await client.ended()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -5) + bytes(6),
        struct.pack(">ih", 5 << 20, HEARTBEAT),
        struct.pack(">ihhih", 10, HEARTBEAT, 0, 1, 500),
        struct.pack(">ihhih", 14, HEARTBEAT, 0, 1, 0) + b"\x7f\xff\xff\xff",
        struct.pack(">ihhih", 12, HEARTBEAT, 4, 1, 0) + b"\xff\xff",
    ],
)
async def test_what_is_no_request_ends_the_connection(
    served: Served, client: RawKafkaClient, sent: bytes
) -> None:
    client.writer.write(sent)
    assert await client.ended()
    async with kafka_client(served.address) as other:
        assert (await other.call(HEARTBEAT, 0, beat(code=1))).error_code == 1


async def test_a_large_request_is_for_apis_with_records(client: RawKafkaClient) -> None:
    client.send(PRODUCE, 7, ProduceRequest("x" * 30_000, 0))
    assert (await client.call(HEARTBEAT, 0, beat("y" * 30_000, 6))).error_code == 6


async def test_bugs_end_the_connection_alone() -> None:
    async with serving() as served, kafka_client(served.address) as client:
        client.send(HEARTBEAT, 0, beat("bug"))
        assert await client.ended()
        assert [str(fault) for fault in served.faults] == ["a bug of this test"]
        async with kafka_client(served.address) as other:
            assert (await other.call(HEARTBEAT, 0, beat(code=1))).error_code == 1


async def test_an_answer_that_cannot_be_written_ends_the_connection_alone() -> None:
    async with serving() as served, kafka_client(served.address) as client:
        client.send(HEARTBEAT, 0, beat("later"))
        await until(lambda: bool(served.apis.waiting))
        served.apis.waiting[0].answer(HeartbeatResponse(error_code=1 << 20))
        assert await client.ended()
        assert len(served.faults) == 1


async def test_requests_of_a_client_that_leaves_are_cancelled(served: Served) -> None:
    async with kafka_client(served.address) as client:
        for _ in range(100):
            client.send(LIST_GROUPS, 0, ListGroupsRequest())
        await until(lambda: served.server.open_calls == 100)
    await until(lambda: served.apis.gone == 100)
    await until(lambda: served.server.open_calls == 0)


async def test_nothing_is_read_while_too_many_requests_wait() -> None:
    async with serving(WireOptions(unanswered_max=10)) as served, kafka_client(served.address) as client:
        for code in range(50):
            client.send(HEARTBEAT, 0, beat("later", code))
        answers: list[Any] = []
        while len(answers) < 50:
            await until(lambda: bool(served.apis.waiting))
            assert served.server.open_calls <= 10
            for exchange in served.apis.waiting[:]:
                served.apis.waiting.remove(exchange)
                exchange.answer(HeartbeatResponse(error_code=len(answers)))
                answers.append(await client.response(HEARTBEAT, 0))
        assert [each.error_code for each in answers] == [*range(50)]


@pytest.mark.slow
async def test_silent_clients_are_cut_off() -> None:
    options = WireOptions(first_s=0.05, frame_s=0.05, idle_s=0.05)
    for sent in (b"", struct.pack(">ihhih", 100, HEARTBEAT, 0, 1, 0)):
        async with serving(replace(options)) as served, kafka_client(served.address) as client:
            client.writer.write(sent)
            assert await client.ended()
    async with serving(options) as served, kafka_client(served.address) as client:
        await client.call(HEARTBEAT, 0, beat())
        assert await client.ended()


async def test_a_drain_lets_running_requests_finish(served: Served, client: RawKafkaClient) -> None:
    client.send(HEARTBEAT, 0, beat("later"))
    await until(lambda: len(served.apis.waiting) == 1)
    stopping = asyncio.ensure_future(served.server.stop(5))
    await asyncio.sleep(0)
    served.apis.waiting[0].answer(HeartbeatResponse(error_code=9))
    assert (await client.response(HEARTBEAT, 0)).error_code == 9
    assert await client.ended()
    client.writer.close()
    await stopping
