"""Progress of a copy: bytes that have come, all of them, and their rate. Pure."""

from collections import deque

_WINDOW_S = 5.0
_MARK_S = 0.5


class CopyProgress:
    """Progress of one copy.

    Attributes:
        copied_bytes: bytes that have come.
        total_bytes: all bytes of the copy, as far as sources have told.
    """

    def __init__(self) -> None:
        self.copied_bytes = self.total_bytes = 0
        # Bytes that had come at some times of the window, ascending.
        self._marks: deque[tuple[float, int]] = deque()

    def begin(self, missing_bytes: int, now: float) -> None:
        """A source has so many bytes of what is missing."""
        self.total_bytes = self.copied_bytes + missing_bytes
        if not self._marks:
            self._marks.append((now, self.copied_bytes))

    def add(self, size: int, now: float) -> None:
        """Bytes have come."""
        self.copied_bytes += size
        self.total_bytes = max(self.total_bytes, self.copied_bytes)
        if not self._marks or now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, self.copied_bytes))

    def bytes_per_second(self, now: float) -> int:
        """Rate over the last seconds."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - _WINDOW_S:
            self._marks.popleft()
        if not self._marks:
            return 0
        at, before = self._marks[0]
        return round((self.copied_bytes - before) / max(now - at, _MARK_S))
