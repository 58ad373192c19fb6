"""Admission of large messages, so that an upload that has begun can be completed.

A message that fits the window of its stream needs no admission. A larger one is admitted when all
of it fits the quota, in FIFO order. Until then the window of its stream stays closed after its
first bytes, while the connection's window is replenished for other streams. So too many uploads
follow one another instead of being refused, and an admitted one waits for no other.

There is a quota per connection (`Uploads`), and one for all connections together (`UploadQuota`),
in which connections queue in FIFO order with one message each.

The road not taken: to leave the connection's window closed as well. The uploads that wait would
fill it, and the admitted one among them could not continue.
"""

from collections import deque
from collections.abc import Callable

__all__ = ["UploadQuota", "Uploads"]


class UploadQuota:
    """Bounds the large messages of all connections.

    Args:
        size: bytes of admitted messages. A larger message is admitted when there is no other.
    """

    __slots__ = ("_queue", "_size", "acquired")

    def __init__(self, size: int) -> None:
        self._size = size
        self.acquired = 0
        # Connections whose next message does not fit. Nobody overtakes.
        self._queue: deque[Uploads] = deque()

    def maybe_acquire(self, uploads: "Uploads", size: int) -> bool:
        """Acquire bytes; False if the connection has to queue, and `Uploads.admit_next` follows."""
        if not self._queue and self._fits(size):
            self.acquired += size
            return True
        self._queue.append(uploads)
        return False

    def release(self, size: int) -> None:
        """Release bytes, and admit messages that fit now."""
        self.acquired -= size
        while self._queue:
            uploads = self._queue[0]
            next_size = uploads.next_size
            if next_size and not self._fits(next_size):
                return
            self._queue.popleft()
            self.acquired += next_size
            uploads.admit_next(admitted=bool(next_size))

    def _fits(self, size: int) -> bool:
        return not self.acquired or self.acquired + size <= self._size


class Uploads:
    """Large messages of one connection, at most one of each stream.

    Args:
        size: bytes of admitted messages. A larger message is admitted when there is no other.
        quota: of all connections.
        admitted: told the stream of a message that is admitted, and the bytes withheld from it.
    """

    __slots__ = ("_acquired", "_admitted", "_queued", "_quota", "_size", "_tell_admitted", "_waiting")

    def __init__(self, size: int, quota: UploadQuota, admitted: Callable[[int, int], None]) -> None:
        self._size = size
        self._quota = quota
        self._tell_admitted = admitted
        # By stream: the size of each admitted message, whose sum is _acquired; size and withheld
        # bytes of each waiting one, in the order of arrival.
        self._admitted: dict[int, int] = {}
        self._acquired = 0
        self._waiting: dict[int, tuple[int, int]] = {}
        # The first waiting message fits here, and the connection queues for the quota.
        self._queued = False

    def receive(self, stream_id: int, size: int, part: int) -> bool:
        """Count a part of a message; True if the message was admitted before.

        Args:
            stream_id: of the message.
            size: bytes of the whole message.
            part: bytes that have come.
        """
        if stream_id in self._admitted:
            return True
        _, withheld = self._waiting.get(stream_id, (0, 0))
        self._waiting[stream_id] = size, withheld + part
        self._admit()
        return False

    def end(self, stream_id: int) -> None:
        """Release a message that is complete, or abandoned."""
        size = self._admitted.pop(stream_id, None)
        if size is not None:
            self._acquired -= size
            self._quota.release(size)
        elif self._waiting.pop(stream_id, None) is None:
            return
        self._admit()

    def waits(self, stream_id: int) -> bool:
        """True for a message that has come in part and is not admitted."""
        return stream_id in self._waiting

    @property
    def next_size(self) -> int:
        """Size of the first waiting message if it fits here, otherwise 0."""
        if not self._waiting:
            return 0
        size, _ = next(iter(self._waiting.values()))
        return size if not self._acquired or self._acquired + size <= self._size else 0

    def admit_next(self, *, admitted: bool) -> None:
        """Leave the quota's queue; if `admitted`, with bytes for the first waiting message."""
        self._queued = False
        if admitted:
            stream_id = next(iter(self._waiting))
            size, withheld = self._waiting.pop(stream_id)
            self._admitted[stream_id] = size
            self._acquired += size
            self._tell_admitted(stream_id, withheld)
        self._admit()

    def _admit(self) -> None:
        if not self._queued and (size := self.next_size):
            if self._quota.maybe_acquire(self, size):
                self.admit_next(admitted=True)
            else:
                self._queued = True
