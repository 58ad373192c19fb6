"""Appends to partitions that do not answer, and their part of the bytes that are written.

As `silent_partitions` for messages: a partition is silent when batches for it were not answered for
two seconds, until it has taken some. Batches for silent partitions have at most half of the bytes;
more are refused with the reason, before they queue. Batches that have come before that may have
more: what exceeds the half is given back, for others, so the memory is half as much again at most.
"""

import asyncio
from collections.abc import Callable

from pixy.backend import TopicPartition
from pixy.errors import PixyError, Unavailable
from pixy.proxy.silent_partitions import LOOK_S

_LOOKS = 8
"""See `silent_partitions`."""
_REMEMBERED_MAX = 10_000


class AppendPart:
    """The batches of an append for one partition, in flight.

    Attributes:
        client: address of the client.
        size: their memory.
        is_silent: the partition does not answer.
        given_back: the bytes were given back.
    """

    __slots__ = ("client", "given_back", "is_silent", "partition", "size")

    def __init__(self, partition: TopicPartition, client: str, size: int) -> None:
        self.partition = partition
        self.client = client
        self.size = size
        self.is_silent = self.given_back = False


class SilentAppends:
    """The silent partitions, and the bytes of batches for them.

    Args:
        size: bytes that are written at a time.
        give_back: called with an address and its bytes that do not count any more.
    """

    def __init__(self, size: int, give_back: Callable[[str, int], None]) -> None:
        self._half = size // 2
        self._give_back = give_back
        self._bytes = 0
        self._partitions: dict[TopicPartition, None] = {}
        # Parts for other partitions, and the look before they began. Invariant: ascending; the
        # timer is set if there are some.
        self._in_flight: dict[AppendPart, int] = {}
        self._look_number = 0
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Look no more."""
        self._in_flight.clear()
        if self._timer is not None:
            self._timer.cancel()

    def why_refused(self, partition: TopicPartition, size: int) -> Unavailable | None:
        """Reason why batches of so many bytes cannot be taken for a partition."""
        if partition not in self._partitions or not self._bytes or self._bytes + size <= self._half:
            return None
        topic, number = partition
        return Unavailable(
            f"{topic}-{number} takes no batches at present (it has not answered for two seconds), and their half of "
            f"producer.buffer_bytes is full of batches for partitions that do not answer: {self._bytes} bytes; try again"
        ).at_limit("producer.buffer_bytes for partitions that do not answer")

    def begin(self, part: AppendPart) -> None:
        """Batches are handed over."""
        if part.partition in self._partitions:
            self._become_silent(part)
            return
        self._in_flight[part] = self._look_number
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def end(self, part: AppendPart, error: PixyError | None) -> None:
        """Batches are answered."""
        if part.is_silent:
            self._bytes -= part.size
        else:
            self._in_flight.pop(part, None)
        if error is None:
            self._partitions.pop(part.partition, None)

    def _become_silent(self, part: AppendPart) -> None:
        part.is_silent = True
        self._bytes += part.size
        if self._bytes > self._half and self._bytes > part.size:
            part.given_back = True
            self._give_back(part.client, part.size)

    def _look(self) -> None:
        self._timer = None
        self._look_number += 1
        late = []
        for part, look in self._in_flight.items():
            if look > self._look_number - _LOOKS:
                break
            late.append(part)
        for part in late:
            del self._in_flight[part]
            if len(self._partitions) < _REMEMBERED_MAX:
                self._partitions[part.partition] = None
            self._become_silent(part)
        if self._in_flight:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
