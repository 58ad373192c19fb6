"""Token buckets against floods of control frames.

A bucket refills with time and with the response frames sent to the peer, because control frames of
honest clients follow the traffic: they update a window, or measure the bandwidth with a PING, once
per so many responses. An attacker who wants to earn tokens has to be served, which costs him as
much as us. Frames that his own windows have cut to a few bytes do not count; otherwise each
WINDOW_UPDATE by one byte would earn more than it costs (see `sender`).
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from pixy.http2.errors import ErrorCode, Http2ConnectionError


class Cost(Enum):
    """Bucket to charge. The value is the reason sent to a peer whose bucket is empty."""

    RESET = "too many stream resets"
    # gRPC clients know this text and halve their ping rate when they see it.
    PING = "too_many_pings"
    SETTINGS = "too many settings"
    OVERHEAD = "too many frames without a message"


class TokenBucketOptions(NamedTuple):
    """Size and refill rate of a bucket.

    Attributes:
        burst: capacity and initial tokens.
        per_second: tokens added per second.
        per_frame: tokens added per response frame that counts, see `Sender.credited_frames`.
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
        # Time and number of response frames at the last refill.
        self.now = now
        self.frames = 0


class TokenBuckets:
    """The token buckets of one connection.

    Args:
        options: size of each bucket.
        now: seconds of a monotonic clock.
    """

    __slots__ = ("_buckets",)

    def __init__(self, options: Mapping[Cost, TokenBucketOptions], now: float) -> None:
        self._buckets = {cost: _TokenBucket(options[cost], now) for cost in Cost}

    def spend(self, cost: Cost, now: float, frames: int, tokens: int = 1) -> None:
        """Take tokens from a bucket.

        Args:
            cost: the bucket.
            now: seconds of the same clock.
            frames: response frames of the connection so far that count.
            tokens: number of tokens.

        Raises:
            Http2ConnectionError: ENHANCE_YOUR_CALM if there are not enough tokens.
        """
        bucket = self._buckets[cost]
        burst, per_second, per_frame = bucket.options
        earned = (now - bucket.now) * per_second + (frames - bucket.frames) * per_frame
        bucket.now, bucket.frames = now, frames
        bucket.tokens = min(burst, bucket.tokens + earned) - tokens
        if bucket.tokens < 0:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, cost.value)

    def refund(self, cost: Cost) -> None:
        """Return a token that was charged for something that proved to be no attack."""
        bucket = self._buckets[cost]
        bucket.tokens = min(bucket.options.burst, bucket.tokens + 1)
