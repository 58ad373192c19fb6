"""The pace of copies: a token bucket that may go into debt. Pure.

What has been fetched is paid for afterwards, however much it was. A chunk larger than the bucket
makes the next one wait longer, and never hangs.
"""


class TokenBucket:
    """Tokens that come at a rate, up to a capacity.

    Args:
        rate: tokens a second.
        capacity: tokens that gather while none are taken.
    """

    def __init__(self, rate: float, capacity: float) -> None:
        self._rate = rate
        self._capacity = capacity
        self._tokens = capacity
        self._at = 0.0

    def take(self, count: float, now: float) -> float:
        """Take tokens; returns seconds until there are some again."""
        self._tokens = min(self._capacity, self._tokens + max(0.0, now - self._at) * self._rate) - count
        self._at = now
        return max(0.0, -self._tokens / self._rate)
