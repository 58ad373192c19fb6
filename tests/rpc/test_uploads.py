"""pixy/rpc/uploads.py: large messages are admitted in order, by connection, client and in all."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from pixy.aio.address_quota import AddressQuota
from pixy.http2 import Options
from pixy.rpc import GrpcOptions, Status
from pixy.rpc.uploads import Uploads
from pixy.serving import ServerOptions
from tests.fakes.clock import FakeClock
from tests.fakes.echo import open_echo, value
from tests.fakes.grpc_client import RawClient, open_client, prefixed
from tests.fakes.waiting import until

UNARY, COLLECT = "/test.Echo/Unary", "/test.Echo/Collect"
MIB = 1 << 20
BEGIN_BYTES = 128 * 1024
"""A quarter of a stream's window: so much comes before a message asks for admission."""
TICK_BYTES = 32 * 1024


class Connection:
    """Uploads of a connection, with the bytes granted to each stream."""

    def __init__(self, quota: AddressQuota, size: int, client: str = "a", begin_bytes: int = 1) -> None:
        self.granted: dict[int, int] = {}
        self.uploads = Uploads(size, quota, client, begin_bytes, self._admitted)

    def receive(self, stream_id: int, size: int, part: int) -> None:
        if self.uploads.receive(stream_id, size, part):
            self._admitted(stream_id, part)

    def _admitted(self, stream_id: int, size: int) -> None:
        self.granted[stream_id] = self.granted.get(stream_id, 0) + size


def test_an_upload_that_fits_is_granted_what_has_come() -> None:
    connection = Connection(AddressQuota(100, 100), 100)
    connection.receive(1, 60, 10)
    connection.receive(1, 60, 20)
    assert connection.granted == {1: 30}


def test_uploads_beyond_the_quota_follow_one_another_and_get_the_withheld_bytes() -> None:
    connection = Connection(AddressQuota(1000, 1000), 100)
    for stream_id in (1, 3, 5):
        connection.receive(stream_id, 60, 10)
        connection.receive(stream_id, 60, 5)
    assert connection.granted == {1: 15}
    connection.uploads.end(1)
    assert connection.granted == {1: 15, 3: 15}
    connection.uploads.end(5)
    connection.uploads.end(3)
    assert connection.granted == {1: 15, 3: 15}


def test_a_connection_whose_uploads_are_abandoned_leaves_the_queue() -> None:
    quota = AddressQuota(100, 100)
    first, second, third = (Connection(quota, 1000) for _ in range(3))
    for connection in (first, second, third):
        connection.receive(1, 100, 10)
    third.uploads.end(1)
    assert [list(queue) for queue in quota._queues.values()] == [[second.uploads]]
    third.receive(3, 100, 10)
    second.uploads.end(1)
    first.uploads.end(1)
    assert (second.granted, third.granted) == ({}, {3: 10})


def test_an_upload_larger_than_the_quota_is_admitted_alone() -> None:
    connection = Connection(AddressQuota(100, 100), 50)
    connection.receive(1, 200, 10)
    connection.receive(3, 10, 10)
    assert connection.granted == {1: 10}
    connection.uploads.end(1)
    assert connection.granted == {1: 10, 3: 10}


def test_connections_queue_for_the_shared_quota_with_one_upload_each() -> None:
    quota = AddressQuota(100, 100)
    first, second, third = (Connection(quota, 1000) for _ in range(3))
    first.receive(1, 90, 1)
    for stream_id in (1, 3):
        second.receive(stream_id, 90, 1)
    third.receive(1, 90, 1)
    order = []
    for connection, stream_id in ((first, 1), (second, 1), (third, 1), (second, 3)):
        order.append([each.granted for each in (first, second, third)])
        connection.uploads.end(stream_id)
        order[-1] = [dict(granted) for granted in order[-1]]
    assert second.granted == {1: 1, 3: 1}
    assert third.granted == {1: 1}
    assert quota.acquired == 0


def test_an_abandoned_upload_leaves_the_queue() -> None:
    quota = AddressQuota(100, 100)
    first, second, third = (Connection(quota, 1000) for _ in range(3))
    for connection in (first, second, third):
        connection.receive(1, 90, 1)
    second.uploads.end(1)
    first.uploads.end(1)
    assert (second.granted, third.granted, quota.acquired) == ({}, {1: 1}, 90)


def test_an_announced_size_reserves_nothing_before_the_first_bytes_have_come() -> None:
    quota = AddressQuota(1000, 1000)
    connection = Connection(quota, 1000, begin_bytes=20)
    connection.receive(1, 900, 19)
    assert (quota.acquired, connection.uploads.waits(1), connection.granted) == (0, False, {})
    connection.receive(1, 900, 1)
    assert (quota.acquired, connection.granted) == (900, {1: 20})
    connection.receive(3, 900, 19)
    connection.uploads.end(3)
    connection.uploads.end(1)
    assert quota.acquired == 0


def test_a_client_has_its_share_and_the_others_take_turns() -> None:
    quota = AddressQuota(100, 50)
    many = [Connection(quota, 1000, "many") for _ in range(4)]
    first, second = (Connection(quota, 1000, name) for name in ("first", "second"))
    for connection in many:
        connection.receive(1, 50, 1)
    assert [len(each.granted) for each in many] == [1, 0, 0, 0]
    first.receive(1, 50, 1)
    assert first.granted == {1: 1}
    second.receive(1, 50, 1)
    first.receive(3, 50, 1)
    # The share of the first client is free again, and the turn is that of the second one.
    first.uploads.end(1)
    assert (second.granted, first.granted) == ({1: 1}, {1: 1})
    many[0].uploads.end(1)
    many[1].uploads.end(1)
    second.uploads.end(1)
    assert (first.granted, [len(each.granted) for each in many]) == ({1: 1, 3: 1}, [1, 1, 1, 0])
    for connection, stream_id in ((many[2], 1), (many[3], 1), (first, 3)):
        connection.uploads.end(stream_id)
    assert quota.acquired == 0


def test_nobody_overtakes_a_large_upload_of_a_client_with_a_share_left() -> None:
    quota = AddressQuota(100, 60)
    small, large = Connection(quota, 1000, "small"), Connection(quota, 1000, "large")
    small.receive(1, 30, 1)
    small.receive(3, 30, 1)
    large.receive(1, 60, 1)
    small.receive(5, 5, 1)
    small.uploads.end(1)
    assert (large.granted, small.granted) == ({1: 1}, {1: 1, 3: 1, 5: 1})


def test_an_upload_is_stalled_when_it_hardly_comes_while_others_wait() -> None:
    quota = AddressQuota(100 * TICK_BYTES, 100 * TICK_BYTES)
    slow, other = (Connection(quota, 1000 * TICK_BYTES) for _ in range(2))
    slow.receive(1, 90 * TICK_BYTES, 1)
    assert [slow.uploads.tick() for _ in range(20)] == [[]] * 20, "nobody waits"
    other.receive(1, 90 * TICK_BYTES, 1)
    for _ in range(20):
        slow.receive(1, 90 * TICK_BYTES, TICK_BYTES)
        assert slow.uploads.tick() == []
    assert [slow.uploads.tick() for _ in range(5)] == [[], [], [], [], [1]]
    slow.uploads.end(1)
    assert (slow.uploads.tick(), other.granted) == ([], {1: 1})


async def upload_together(client: RawClient, bodies: dict[int, bytes]) -> None:
    """Send requests frame by frame, round robin, as the server's windows allow."""
    left = dict(bodies)
    while left:
        sent = 0
        for stream_id, body in list(left.items()):
            size = min(client.h2.local_flow_control_window(stream_id), 16_384, len(body))
            if size:
                client.data(stream_id, body[:size], end=size == len(body))
                left[stream_id] = body[size:]
                sent += size
            if not left[stream_id] or client.answers[stream_id].ended:
                del left[stream_id]
        if not sent:
            await client.read_once()


@pytest.mark.slow
@pytest.mark.parametrize("path", [UNARY, COLLECT])
@pytest.mark.parametrize(("uploads", "size"), [(5, 4 * MIB - 100), (20, MIB)])
async def test_concurrent_uploads_are_answered_and_hold_no_more_than_the_quota(
    path: str, uploads: int, size: int
) -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        await client.call(UNARY, value(b"x"))
        streams = [client.begin(path) for _ in range(uploads)]
        await upload_together(client, dict.fromkeys(streams, prefixed(value(b"drop" + bytes(size)))))
        assert [(await client.answer(stream_id)).status for stream_id in streams] == [0] * uploads
        (connection,) = echo.server.connection_counters
        assert connection.request_bytes == 0


async def test_every_upload_of_a_connection_acquires_its_own_size() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        await client.call(UNARY, value(b"x"))
        quota, body = echo.factory._environment.upload_quota, prefixed(value(bytes(MIB)))
        for count in (1, 2):
            await client.upload(client.begin(UNARY), body[:BEGIN_BYTES], end=False)
            await until(lambda: quota.acquired >= count * MIB)  # noqa: B023  # awaited in the loop
            assert quota.acquired == count * len(body)


@pytest.mark.slow
async def test_abandoned_uploads_release_their_quota() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        await client.call(UNARY, value(b"x"))
        body = prefixed(value(b"drop" + bytes(4 * MIB - 100)))
        stuck = [client.begin(UNARY) for _ in range(6)]
        for stream_id in stuck:
            await client.upload(stream_id, body[:BEGIN_BYTES], end=False)
        waiting = client.begin(UNARY)
        await client.upload(waiting, body[:BEGIN_BYTES], end=False)
        for stream_id in stuck:
            client.reset(stream_id)
        await upload_together(client, {waiting: body[BEGIN_BYTES:]})
        assert (await client.answer(waiting)).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", [UNARY, COLLECT])
@pytest.mark.parametrize("sent", [100, BEGIN_BYTES])
async def test_idle_uploads_do_not_stop_those_of_others(path: str, sent: int) -> None:
    """With 100 bytes each they reserve nothing; with more, until they have stalled for seconds."""
    clock, body = FakeClock(), prefixed(value(b"drop" + bytes(4 * MIB - 100)))
    options = GrpcOptions(request_s=0, http2=Options(keepalive_s=0, handshake_s=0))
    limits = ServerOptions(buffer_bytes=32 * MIB)
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        echo = await stack.enter_async_context(open_echo(options, limits, clock=clock))
        idle = [await stack.enter_async_context(open_client(echo.address)) for _ in range(6)]
        streams = [client.begin(path) for client in idle]
        for client, stream_id in zip(idle, streams, strict=True):
            await client.upload(stream_id, body[:sent], end=False)
        await until(lambda: echo.server.counters.calls == len(idle))
        victim = await stack.enter_async_context(open_client(echo.address))
        stream_id = victim.begin(path)
        upload = asyncio.create_task(upload_together(victim, {stream_id: body}))
        while sent == BEGIN_BYTES and not upload.done():
            clock.advance(1)
            await asyncio.sleep(0.01)
        await upload
        assert (await victim.answer(stream_id)).status == 0
        if sent == BEGIN_BYTES:
            answer = await idle[0].answer(streams[0])
            assert answer.status == Status.RESOURCE_EXHAUSTED
            assert "too slowly" in answer.message
