"""pixy/rpc/incomplete_requests.py: bytes are bounded together, and times expire in order."""

import pytest

from pixy.rpc import GrpcError, Status
from pixy.rpc.incomplete_requests import IncompleteRequests


def test_requests_together_hold_no_more_than_the_limit() -> None:
    requests = IncompleteRequests(100)
    requests.hold(1, 60)
    requests.hold(3, 40)
    requests.hold(1, 50)
    assert (requests.held_bytes, requests.held) == (90, {1: 50, 3: 40})
    with pytest.raises(GrpcError, match=r"exceed grpc\.request_buffer_bytes, 100 bytes") as caught:
        requests.hold(5, 20)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    for stream_id in (5, 1, 1):
        requests.release(stream_id)
    assert (requests.held_bytes, requests.held) == (40, {3: 40})


def test_requests_expire_in_the_order_of_their_begin() -> None:
    requests = IncompleteRequests(100)
    for stream_id, begin in ((1, 10.0), (3, 11.0), (5, 12.0), (7, 13.0)):
        requests.since[stream_id] = begin
    requests.restart(1, 14.0)
    requests.complete(3)
    requests.complete(9)
    assert [requests.take_expired(12.5) for _ in range(2)] == [5, None]
    assert [requests.take_expired(14.0) for _ in range(3)] == [7, 1, None]
