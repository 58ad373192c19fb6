"""pixy/rpc/incomplete_requests.py: common limit of bytes, order of expiry, windows."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from pixy.aio.address_quota import AddressQuota
from pixy.http2 import Options
from pixy.rpc import GrpcError, GrpcOptions, Status
from pixy.rpc.incomplete_requests import IncompleteRequests

WINDOW = Options().stream_window_bytes
BEGIN = WINDOW // 4
"""So much of a message comes before it asks for admission."""


class FakeLink:
    """Counts what a connection's link is told, and the bytes that the client may send again."""

    def __init__(self) -> None:
        self.peer = "192.0.2.1:1000"
        self.workload = SimpleNamespace(now=10.0)
        self.told = Counter[str]()
        self.connection_bytes = 0
        self.stream_bytes = Counter[int]()

    def note_held(self) -> None:
        self.told["note_held"] += 1

    def touch(self) -> None:
        self.told["touch"] += 1

    def replenish(self, stream_id: int, size: int) -> None:
        self.replenish_connection(stream_id, size)
        self.replenish_stream(stream_id, size)

    def replenish_connection(self, stream_id: int, size: int) -> None:
        self.connection_bytes += size

    def replenish_stream(self, stream_id: int, size: int) -> None:
        self.stream_bytes[stream_id] += size


def opened(bytes_max: int) -> tuple[IncompleteRequests, FakeLink]:
    """The requests of a connection, and its link."""
    environment: Any = SimpleNamespace(
        options=GrpcOptions(request_bytes_max=bytes_max),
        upload_quota=AddressQuota(100 * WINDOW, 100 * WINDOW),
    )
    link: Any = FakeLink()
    return IncompleteRequests(link, link, environment), link


def test_requests_together_hold_no_more_than_the_limit() -> None:
    requests, link = opened(100)
    requests.hold(1, 60)
    requests.hold(3, 40)
    requests.hold(1, 50)
    assert (requests.held_bytes, requests.held) == (90, {1: 50, 3: 40})
    with pytest.raises(GrpcError, match=r"exceed 100 bytes") as caught:
        requests.hold(5, 20)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert link.told == {"note_held": 4}
    for stream_id in (5, 1, 1):
        requests.release(stream_id)
    requests.hold(3, 0)
    assert (requests.held_bytes, requests.held) == (0, {})


def test_requests_expire_in_the_order_of_their_begin() -> None:
    requests, link = opened(100)
    for stream_id, begin in ((1, 10.0), (3, 11.0), (5, 12.0), (7, 13.0)):
        requests.since[stream_id] = begin
    link.workload.now = 14.0
    requests.restart(1)
    requests.complete(3)
    requests.complete(9)
    assert [requests.take_expired(12.5) for _ in range(2)] == [5, None]
    assert [requests.take_expired(14.0) for _ in range(3)] == [7, 1, None]


def test_the_rest_of_a_message_that_fits_the_window_may_come_at_once() -> None:
    requests, link = opened(10 * WINDOW)
    requests.receive_part(1, 0, 3)
    link.workload.now = 11.0
    requests.receive_part(1, WINDOW, 100)
    assert (link.connection_bytes, link.stream_bytes, link.told) == (103, {1: 103}, {"touch": 2})
    assert requests.since == {1: 10.0}
    requests.end_part(1)
    assert requests.since == {}


def test_the_rest_of_a_larger_message_comes_and_its_time_counts_once_it_is_admitted() -> None:
    requests, link = opened(4 * WINDOW)
    for stream_id in (1, 3):
        requests.receive_part(stream_id, 2 * WINDOW, BEGIN)
    assert (link.connection_bytes, link.stream_bytes) == (2 * BEGIN, {1: BEGIN})
    link.workload.now = 20.0
    assert (requests.take_expired(10.0), requests.maybe_postpone(1)) == (1, False)
    assert (requests.take_expired(10.0), requests.maybe_postpone(3)) == (3, True)
    assert requests.since == {3: 20.0}
    link.workload.now, link.told = 21.0, Counter()
    requests.release(1)
    assert (link.stream_bytes, link.told) == ({1: BEGIN, 3: BEGIN}, {"touch": 1})
    assert (requests.since, requests.maybe_postpone(3)) == ({3: 21.0}, False)


def test_time_counts_before_a_message_asks_for_admission() -> None:
    requests, link = opened(4 * WINDOW)
    requests.receive_part(1, 2 * WINDOW, BEGIN - 1)
    assert (link.connection_bytes, link.stream_bytes) == (BEGIN - 1, {})
    assert (requests.take_expired(10.0), requests.maybe_postpone(1)) == (1, False)
