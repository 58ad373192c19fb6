"""Frames of one connection: requests in, answers out in the order of the requests. Pure.

    frame     int32 length, content; a request's content begins with the key of its API
    answer    chunks, written one after the other; nothing copies large ones

A frame is taken whole: its pieces are joined when the last one is there. Its length is checked
before a byte of it is kept. A bare frame is any bytes, also none: a token of SASL.
"""

import struct
from collections.abc import Callable

from pixy.kafka_messages import Chunks

_PREFIX = struct.Struct(">ih")
_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = 4
_NO_API = -1
_HEAD_BYTES = 10
"""Key, version, correlation id, length of the client's name."""


class RefusedFrame(Exception):
    """A frame that is not read: the connection ends."""


class WireCore:
    """Input and output of a connection, see `ConnectionCore`.

    Args:
        largest: largest frame of an API, by its key.

    Attributes:
        line: number of the request whose answer comes next.
        pending: input is left that was not looked at.
        has_output: see `ConnectionCore`.
        queued_bytes: of answers.
        ending: no frame is taken any more.
        is_bare: the next frames are bare.
    """

    __slots__ = (
        "_answers",
        "_at",
        "_frame_bytes",
        "_input",
        "_is_over",
        "_largest",
        "_missing",
        "_output",
        "_pieces",
        "_unwritten",
        "ending",
        "has_output",
        "is_bare",
        "line",
        "pending",
        "queued_bytes",
        "running",
    )

    def __init__(self, largest: Callable[[int], int]) -> None:
        self._largest = largest
        # Input, and how much of it is taken.
        self._input = b""
        self._at = 0
        # Pieces of a frame, their bytes, and those that are still to come.
        self._pieces: list[bytes] = []
        self._frame_bytes = self._missing = 0
        # Answers before their turn, by number; those in the output, in order.
        self._answers: dict[int, Chunks] = {}
        self._output: Chunks = []
        # Bytes of earlier output in a transport that is full. Invariant: in `queued_bytes` too.
        self._unwritten = 0
        self.line = self.queued_bytes = self.running = 0
        self.pending = self.has_output = self.ending = self.is_bare = False
        # Nobody reads answers any more.
        self._is_over = False

    # --- for the link -----------------------------------------------------------------------------

    @property
    def data_expected(self) -> int:
        """See `ConnectionCore`."""
        return self._missing

    @property
    def closed(self) -> bool:
        """See `ConnectionCore`."""
        return self.ending and not self.running

    @property
    def input_bytes(self) -> int:
        """Bytes of requests that are not whole, or wait."""
        return len(self._input) - self._at + self._frame_bytes

    @property
    def buffered_bytes(self) -> int:
        """See `ConnectionCore`."""
        return self.input_bytes + self.queued_bytes

    def take_output(self, most: int) -> bytes:
        """See `ConnectionCore`."""
        if self._unwritten:
            self.set_unwritten(0)
        output = self._output
        if self.queued_bytes <= most or len(output) == 1:
            taken = output[0] if len(output) == 1 else b"".join(output)
            output.clear()
        else:
            count = size = 0
            while size < most:
                size += len(output[count])
                count += 1
            taken = b"".join(output[:count])
            del output[:count]
        self.has_output = bool(output)
        self.queued_bytes -= len(taken)
        return taken

    def set_unwritten(self, size: int) -> None:
        """See `ConnectionCore`."""
        self.queued_bytes += size - self._unwritten
        self._unwritten = size

    # --- requests ---------------------------------------------------------------------------------

    def receive(self, chunk: bytes) -> None:
        """Take input."""
        if not chunk:
            return
        self._input = self._input[self._at :] + chunk if self._at < len(self._input) else chunk
        self._at = 0
        self.pending = True

    def next_frame(self) -> bytes | None:
        """The next request, None if more input is needed.

        Raises:
            RefusedFrame: its length is not allowed.
        """
        if self.ending:
            self._drop_input()
            return None
        if self._missing:
            return self._rest()
        at, left = self._at, len(self._input) - self._at
        if left < (_LENGTH_BYTES if self.is_bare else _PREFIX.size):
            self.pending = False
            return None
        size = self._checked_size(at)
        self._at = begin = at + _LENGTH_BYTES
        if left - _LENGTH_BYTES >= size:
            self._at = begin + size
            self.pending = self._at < len(self._input)
            return self._input[begin : begin + size]
        self._missing = size
        return self._rest()

    def _checked_size(self, at: int) -> int:
        """Length of the frame at a position."""
        if self.is_bare:
            (size,), key, smallest = _LENGTH.unpack_from(self._input, at), _NO_API, 0
        else:
            (size, key), smallest = _PREFIX.unpack_from(self._input, at), _HEAD_BYTES
        largest = self._largest(key)
        if not smallest <= size <= largest:
            self.end()
            raise RefusedFrame(f"a request of {size} bytes to API {key}, expected {smallest} to {largest}")
        return int(size)

    def _rest(self) -> bytes | None:
        """Take what is there of a frame; returns it when it is whole."""
        piece = self._input[self._at : self._at + self._missing]
        self._at += len(piece)
        self._missing -= len(piece)
        self._frame_bytes += len(piece)
        self._pieces.append(piece)
        self.pending = self._at < len(self._input)
        if self._missing:
            return None
        pieces, self._pieces, self._frame_bytes = self._pieces, [], 0
        return b"".join(pieces)

    def hold(self, *, held: bool) -> None:
        """Stop taking frames until this is called again."""
        self.pending = not held and self._at < len(self._input)

    def end(self) -> None:
        """Take no more frames."""
        self.ending = True
        self._drop_input()

    def terminate(self) -> None:
        """End at once: nothing is answered any more."""
        self.end()
        self._is_over = True
        self.running = 0
        self._answers.clear()

    def _drop_input(self) -> None:
        self._input, self._at = b"", 0
        self._pieces, self._frame_bytes, self._missing = [], 0, 0
        self.pending = False

    # --- answers ----------------------------------------------------------------------------------

    def respond(self, number: int, answer: Chunks) -> None:
        """Write the answer to a request when its turn has come. One without chunks has none."""
        if self._is_over:
            return
        self.running -= 1
        self.queued_bytes += sum(map(len, answer))
        if number != self.line:
            self._answers[number] = answer
            return
        self._output += answer
        self.line += 1
        while self._answers and (later := self._answers.pop(self.line, None)) is not None:
            self._output += later
            self.line += 1
        self.has_output = bool(self._output)
