"""Admission of large messages, so that an upload that has begun can be completed.

A message that fits the window of its stream needs no admission. A larger one is admitted when all
of it fits the quota, in FIFO order. Until then the window of its stream stays closed after its
first bytes, while the connection's window is replenished for other streams. So too many uploads
follow one another instead of being refused, and an admitted one waits for no other.

There is a quota per connection (`Uploads`), and one for all connections together (`AddressQuota`),
in which the connections queue with one message each. A size is only announced, so it reserves
nothing by itself:

- a message asks for admission when `begin_bytes` of it have come, for which it needs none;
- one client address has a share of the quota;
- an admitted message that comes at less than `_BYTES_PER_TICK` while others wait is stalled, and
  the connection ends it.

Roads not taken: to leave the connection's window closed as well. The uploads that wait would fill
it, and the admitted one among them could not continue. To reserve only what has come: uploads that
fill the quota half-way would wait for each other.
"""

from collections.abc import Callable

from pixy.aio.address_quota import AddressQuota

_BYTES_PER_TICK = 32 * 1024
"""Least rate of an admitted message while others wait; ticks are about a second apart."""
_GRACE_TICKS = 5
"""Ticks without a byte, after which it is stalled."""


class _Upload:
    """An admitted message.

    Attributes:
        size: bytes of the whole message.
        credit: bytes that it is ahead of the least rate, at most the grace.
    """

    __slots__ = ("credit", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.credit = _GRACE_TICKS * _BYTES_PER_TICK

    def receive(self, part: int) -> None:
        self.credit = min(self.credit + part, _GRACE_TICKS * _BYTES_PER_TICK)


class Uploads:
    """Large messages of one connection, at most one of each stream.

    Args:
        size: bytes of admitted messages. A larger message is admitted when there is no other.
        quota: of all connections.
        client: the client's address.
        begin_bytes: bytes of a message that come before it asks for admission; the client may send
            them in any case.
        admitted: told the stream of a message that is admitted, and the bytes withheld from it.
    """

    __slots__ = (
        "_acquired",
        "_admitted",
        "_begin_bytes",
        "_begun",
        "_queued",
        "_quota",
        "_size",
        "_tell_admitted",
        "_waiting",
        "client",
    )

    def __init__(
        self,
        size: int,
        quota: AddressQuota,
        client: str,
        begin_bytes: int,
        admitted: Callable[[int, int], None],
    ) -> None:
        self._size = size
        self._quota = quota
        self.client = client
        self._begin_bytes = begin_bytes
        self._tell_admitted = admitted
        # By stream: withheld bytes of messages that have not asked yet; size and withheld bytes of
        # those that wait, in the order in which they asked; the admitted ones, whose sizes have the
        # sum _acquired.
        self._begun: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, int]] = {}
        self._admitted: dict[int, _Upload] = {}
        self._acquired = 0
        # The first waiting message fits here, and the connection queues for the quota.
        self._queued = False

    def receive(self, stream_id: int, size: int, part: int) -> bool:
        """Count a part of a message; True if the message was admitted before.

        Args:
            stream_id: of the message.
            size: bytes of the whole message.
            part: bytes that have come.
        """
        admitted = self._admitted.get(stream_id)
        if admitted is not None:
            admitted.receive(part)
            return True
        if stream_id in self._waiting:
            self._waiting[stream_id] = size, self._waiting[stream_id][1] + part
            return False
        withheld = self._begun[stream_id] = self._begun.get(stream_id, 0) + part
        if withheld >= self._begin_bytes:
            del self._begun[stream_id]
            self._waiting[stream_id] = size, withheld
            self._admit()
        return False

    def end(self, stream_id: int) -> None:
        """Release a message that is complete, or abandoned."""
        if self._begun.pop(stream_id, None) is not None:
            return
        upload = self._admitted.pop(stream_id, None)
        if upload is not None:
            self._acquired -= upload.size
            self._quota.release(self.client, upload.size)
        elif self._waiting.pop(stream_id, None) is None:
            return
        if self._queued and not self._waiting:
            self._queued = False
            self._quota.withdraw(self)
        self._admit()

    def waits(self, stream_id: int) -> bool:
        """True for a message that has asked for admission, and is not admitted."""
        return stream_id in self._waiting

    def tick(self) -> list[int]:
        """The streams of stalled messages. Called about once a second."""
        if not self._admitted or not (self._waiting or self._quota.is_wanted(self.client)):
            return []
        for upload in self._admitted.values():
            upload.credit -= _BYTES_PER_TICK
        return [stream_id for stream_id, upload in self._admitted.items() if upload.credit < 0]

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
            self._admitted[stream_id] = _Upload(size)
            self._acquired += size
            self._tell_admitted(stream_id, withheld)
        self._admit()

    def _admit(self) -> None:
        if not self._queued and (size := self.next_size):
            if self._quota.maybe_acquire(self, size):
                self.admit_next(admitted=True)
            else:
                self._queued = True
