"""Admission of large unary requests, so that what has begun to come can be completed.

A request that fits the window of its stream comes without any permission. A larger one is admitted when there is room for all of it, in the
order of arrival. Until then its stream's window stays closed behind its first bytes, while the connection's window opens again for other
streams. So uploads that are too many follow one another instead of being refused, and an admitted one waits for nobody.

There is room per connection (`Uploads`), and for all connections together (`UploadRoom`), where connections queue in FIFO order with one
request each.

The road not taken: to leave the connection's window closed as well. The uploads that wait would fill it, and the admitted one among
them could not go on.
"""

from collections import deque
from collections.abc import Callable

__all__ = ["UploadRoom", "Uploads"]


class UploadRoom:
    """Room for the large requests of all connections.

    Args:
        size: bytes of admitted requests. A larger request is admitted when there is no other.
    """

    __slots__ = ("_line", "_size", "taken")

    def __init__(self, size: int) -> None:
        self._size = size
        self.taken = 0
        # Connections whose next request does not fit. Nobody overtakes.
        self._line: deque[Uploads] = deque()

    def maybe_take(self, uploads: "Uploads", size: int) -> bool:
        """Take room; False if there is none, and `Uploads.admit_next` follows when there is."""
        if not self._line and self._fits(size):
            self.taken += size
            return True
        self._line.append(uploads)
        return False

    def give_back(self, size: int) -> None:
        """Room is free again."""
        self.taken -= size
        while self._line:
            uploads = self._line[0]
            wanted = uploads.wanted
            if wanted and not self._fits(wanted):
                return
            self._line.popleft()
            self.taken += wanted
            uploads.admit_next(admitted=bool(wanted))

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._size


class Uploads:
    """The large requests of one connection.

    Args:
        size: bytes of admitted requests. A larger request is admitted when there is no other.
        room: of all connections.
        admitted: told of a request that is admitted, and of the bytes that were withheld from it.
    """

    __slots__ = ("_admitted", "_in_line", "_room", "_size", "_taken", "_tell_admitted", "_waiting")

    def __init__(self, size: int, room: UploadRoom, admitted: Callable[[int, int], None]) -> None:
        self._size = size
        self._room = room
        self._tell_admitted = admitted
        # By stream: the size of each admitted request, whose sum is _taken; size and withheld bytes of each that waits, in the order of
        # arrival.
        self._admitted: dict[int, int] = {}
        self._taken = 0
        self._waiting: dict[int, tuple[int, int]] = {}
        # Whether the first that waits fits here, and the connection stands in line for room.
        self._in_line = False

    def receive(self, stream_id: int, size: int, part: int) -> bool:
        """A part of a request has come; True if the request was admitted before, and the client may send as much again.

        Args:
            stream_id: of the request.
            size: bytes of the whole request.
            part: bytes that have come.
        """
        if stream_id in self._admitted:
            return True
        _, withheld = self._waiting.get(stream_id, (0, 0))
        self._waiting[stream_id] = size, withheld + part
        self._admit()
        return False

    def end(self, stream_id: int) -> None:
        """A request is complete, or given up."""
        size = self._admitted.pop(stream_id, None)
        if size is not None:
            self._taken -= size
            self._room.give_back(size)
        elif self._waiting.pop(stream_id, None) is None:
            return
        self._admit()

    def waits(self, stream_id: int) -> bool:
        """True for a request that has come in part and is not admitted."""
        return stream_id in self._waiting

    @property
    def wanted(self) -> int:
        """Size of the next request that fits here, 0 if there is none."""
        if not self._waiting:
            return 0
        size, _ = next(iter(self._waiting.values()))
        return size if not self._taken or self._taken + size <= self._size else 0

    def admit_next(self, *, admitted: bool) -> None:
        """The connection is not in line any more, with room for the next request if that is `admitted`."""
        self._in_line = False
        if admitted:
            stream_id = next(iter(self._waiting))
            size, withheld = self._waiting.pop(stream_id)
            self._admitted[stream_id] = size
            self._taken += size
            self._tell_admitted(stream_id, withheld)
        self._admit()

    def _admit(self) -> None:
        if not self._in_line and (size := self.wanted):
            if self._room.maybe_take(self, size):
                self.admit_next(admitted=True)
            else:
                self._in_line = True
