"""Token buckets, `pixy.http2.token_buckets`."""

import pytest

from pixy.http2 import ErrorCode
from pixy.http2.errors import Http2ConnectionError
from pixy.http2.token_buckets import Cost, TokenBucketOptions, TokenBuckets


def token_buckets(burst: int = 3, per_second: float = 0, per_frame: float = 0) -> TokenBuckets:
    return TokenBuckets(dict.fromkeys(Cost, TokenBucketOptions(burst, per_second, per_frame)), 100.0)


def spend_until_empty(of: TokenBuckets, now: float = 100.0) -> int:
    """Number of tokens that were left."""
    for spent in range(1000):
        try:
            of.spend(Cost.PING, now, 0)
        except Http2ConnectionError:
            return spent
    raise AssertionError("there is no end of tokens")


def test_an_empty_bucket_is_an_error_that_grpc_clients_understand() -> None:
    with pytest.raises(Http2ConnectionError, match="too_many_pings") as caught:
        token_buckets().spend(Cost.PING, 100.0, 0, tokens=4)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_burst_is_accepted_but_not_one_more() -> None:
    assert spend_until_empty(token_buckets()) == 3


def test_tokens_are_added_with_time_up_to_the_burst() -> None:
    of = token_buckets(burst=10, per_second=2)
    of.spend(Cost.PING, 100.0, 0, tokens=10)
    of.spend(Cost.PING, 102.0, 0, tokens=4)
    with pytest.raises(Http2ConnectionError):
        of.spend(Cost.PING, 102.0, 0)
    assert spend_until_empty(token_buckets(burst=10, per_second=2), now=1e6) == 10


def test_tokens_are_added_with_response_frames() -> None:
    of = token_buckets(burst=10, per_frame=0.5)
    of.spend(Cost.PING, 100.0, 0, tokens=10)
    of.spend(Cost.PING, 100.0, 8, tokens=4)
    with pytest.raises(Http2ConnectionError):
        of.spend(Cost.PING, 100.0, 8)


def test_each_cost_has_its_own_bucket() -> None:
    of = token_buckets()
    assert spend_until_empty(of) == 3
    of.spend(Cost.RESET, 100.0, 0)


def test_a_refunded_token_can_be_spent_again_up_to_the_burst() -> None:
    of = token_buckets()
    of.refund(Cost.PING)
    of.spend(Cost.PING, 100.0, 0, tokens=3)
    of.refund(Cost.PING)
    assert spend_until_empty(of) == 1
