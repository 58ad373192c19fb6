"""The pace of copies: a token bucket that may go into debt, and the size of chunks. Pure.

What has been fetched is paid for afterwards, however much it was. A chunk larger than the bucket
makes the next one wait longer, and never hangs.
"""

_QUICK_S, _SLOW_S = 0.05, 0.5
"""Times of a chunk, in seconds, after which the next one is larger, or smaller."""


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


class ChunkSize:
    """Bytes to ask for at a time: many, as long as they come quickly and no client writes.

    A large chunk has fewer requests and larger writes; a small one holds up less of what comes
    behind it, in the event loops, on the connection and on the disk.

    Args:
        least, most: bytes; the first chunk has the least.

    Attributes:
        bytes: for the next request.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self.bytes = least

    def came(self, seconds: float, *, clients_write: bool) -> None:
        """A chunk has come.

        Args:
            seconds: from its request to its end.
        """
        if clients_write:
            self.bytes = self._least
        elif seconds < _QUICK_S:
            self.bytes = min(2 * self.bytes, self._most)
        elif seconds > _SLOW_S:
            self.bytes = max(self.bytes // 2, self._least)

    def shrink_to(self, most: int) -> None:
        """Ask for no more than this from here on."""
        self._most = max(1, most)
        self._least = min(self._least, self._most)
        self.bytes = min(self.bytes, self._most)
