"""How much of what costs us and brings a peer nothing is taken before it is an attack.

A budget is a bucket of tokens. It fills with time and with the frames of answers that the peer is sent, because honest
clients' control frames follow the traffic: a window is updated, or the bandwidth measured with a PING, per so many answers.
An attacker who wants to earn tokens has to be served, which costs him as much as us. Frames that his own windows have cut to
a few bytes do not count, or each WINDOW_UPDATE by one byte would earn more than it costs (`sender`).
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from pixy.http2.errors import ErrorCode, Http2ConnectionError

__all__ = ["Cost", "TokenBucketOptions", "TokenBuckets"]


class Cost(Enum):
    """What tokens are spent on, and what a peer that has none left is told."""

    RESET = "too many streams were reset"
    # gRPC's clients know this text, and ping half as often from then on.
    PING = "too_many_pings"
    SETTINGS = "too many settings"
    OVERHEAD = "too many frames that move no message"


class TokenBucketOptions(NamedTuple):
    """The size of a budget.

    Attributes:
        burst: tokens that it holds at most, and at first.
        per_second: tokens that come with time.
        per_frame: tokens that come with each frame of an answer that counts, see `Sender.credited_frames`.
    """

    burst: int
    per_second: float
    per_frame: float


class _TokenBucket:
    __slots__ = ("frames", "now", "options", "tokens")

    def __init__(self, options: TokenBucketOptions, now: float) -> None:
        self.options = options
        # Invariant: at most options.burst.
        self.tokens = float(options.burst)
        # When, and behind how many frames of answers, tokens were added last.
        self.now = now
        self.frames = 0


class TokenBuckets:
    """The tokens that a connection has left.

    Args:
        options: the size of each budget.
        now: seconds of a monotonic clock.
    """

    __slots__ = ("_buckets",)

    def __init__(self, options: Mapping[Cost, TokenBucketOptions], now: float) -> None:
        self._buckets = {cost: _TokenBucket(options[cost], now) for cost in Cost}

    def spend(self, cost: Cost, now: float, frames: int, tokens: int = 1) -> None:
        """Take tokens.

        Args:
            cost: of which budget.
            now: seconds of the same clock.
            frames: how many frames of answers there have been on the connection that count.
            tokens: how many.

        Raises:
            Http2ConnectionError: ENHANCE_YOUR_CALM, there are not so many.
        """
        bucket = self._buckets[cost]
        burst, per_second, per_frame = bucket.options
        earned = (now - bucket.now) * per_second + (frames - bucket.frames) * per_frame
        bucket.now, bucket.frames = now, frames
        bucket.tokens = min(burst, bucket.tokens + earned) - tokens
        if bucket.tokens < 0:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, cost.value)

    def refund(self, cost: Cost) -> None:
        """A token was spent on what has turned out to be no attack."""
        bucket = self._buckets[cost]
        bucket.tokens = min(bucket.options.burst, bucket.tokens + 1)
