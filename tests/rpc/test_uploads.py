"""pixy/rpc/uploads.py: large messages are admitted in FIFO order, per connection and in all."""

import pytest

from pixy.rpc.uploads import UploadQuota, Uploads
from tests.fakes.echo import open_echo, value
from tests.fakes.grpc_client import RawClient, open_client, prefixed
from tests.fakes.waiting import until

UNARY, COLLECT = "/test.Echo/Unary", "/test.Echo/Collect"
MIB = 1 << 20


class Connection:
    """Uploads of a connection, with the bytes granted to each stream."""

    def __init__(self, quota: UploadQuota, size: int) -> None:
        self.granted: dict[int, int] = {}
        self.uploads = Uploads(size, quota, self._admitted)

    def receive(self, stream_id: int, size: int, part: int) -> None:
        if self.uploads.receive(stream_id, size, part):
            self._admitted(stream_id, part)

    def _admitted(self, stream_id: int, size: int) -> None:
        self.granted[stream_id] = self.granted.get(stream_id, 0) + size


def test_an_upload_that_fits_is_granted_what_has_come() -> None:
    connection = Connection(UploadQuota(100), 100)
    connection.receive(1, 60, 10)
    connection.receive(1, 60, 20)
    assert connection.granted == {1: 30}


def test_uploads_beyond_the_quota_follow_one_another_and_get_the_withheld_bytes() -> None:
    connection = Connection(UploadQuota(1000), 100)
    for stream_id in (1, 3, 5):
        connection.receive(stream_id, 60, 10)
        connection.receive(stream_id, 60, 5)
    assert connection.granted == {1: 15}
    connection.uploads.end(1)
    assert connection.granted == {1: 15, 3: 15}
    connection.uploads.end(5)
    connection.uploads.end(3)
    assert connection.granted == {1: 15, 3: 15}


def test_an_upload_larger_than_the_quota_is_admitted_alone() -> None:
    connection = Connection(UploadQuota(100), 50)
    connection.receive(1, 200, 10)
    connection.receive(3, 10, 10)
    assert connection.granted == {1: 10}
    connection.uploads.end(1)
    assert connection.granted == {1: 10, 3: 10}


def test_connections_queue_for_the_shared_quota_with_one_upload_each() -> None:
    quota = UploadQuota(100)
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
    quota = UploadQuota(100)
    first, second, third = (Connection(quota, 1000) for _ in range(3))
    for connection in (first, second, third):
        connection.receive(1, 90, 1)
    second.uploads.end(1)
    first.uploads.end(1)
    assert (second.granted, third.granted, quota.acquired) == ({}, {1: 1}, 90)


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
        quota, body = echo.server._environment.upload_quota, prefixed(value(bytes(MIB)))
        for count in (1, 2):
            client.data(client.begin(UNARY), body[:16_000])
            await until(lambda: quota.acquired >= count * MIB)  # noqa: B023  # awaited in the loop
            assert quota.acquired == count * len(body)


@pytest.mark.slow
async def test_abandoned_uploads_release_their_quota() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        await client.call(UNARY, value(b"x"))
        body = prefixed(value(b"drop" + bytes(4 * MIB - 100)))
        stuck = [client.begin(UNARY) for _ in range(6)]
        for stream_id in stuck:
            client.data(stream_id, body[:16_000])
        waiting = client.begin(UNARY)
        client.data(waiting, body[:16_000])
        for stream_id in stuck:
            client.reset(stream_id)
        await upload_together(client, {waiting: body[16_000:]})
        assert (await client.answer(waiting)).status == 0
