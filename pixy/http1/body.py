"""Bodies of requests, as their bytes come.

A chunk (RFC 9112 §7.1) is its size in at most eight hexadecimal digits, CRLF, its bytes, CRLF. A
chunk extension is refused: nobody sends one, and servers differ about where it ends. Trailers are
checked and dropped.
"""

import re
from typing import Protocol

from pixy.http1.head import HeadError, check_trailers

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_SIZE_LINE_MAX = 10
_TRAILERS_MAX = 16_384
_FRAMING_BYTES_MAX = 64 << 10
"""Beyond it, sizes and line ends of chunks are no more than their bytes: a chunk costs as much as a
kilobyte of a large one.
"""
_CHUNKS_AT_ONCE = 512
"""Steps of `ChunkedBody.take`, each as long as a hundred bytes: a chunk may have a single one."""


class Body(Protocol):
    """A body that is being received.

    Attributes:
        content: what has come of it.
        complete: all has come.
        is_slow: `take` has stopped because it has looked at many small pieces.
    """

    content: bytearray
    complete: bool
    is_slow: bool

    @property
    def expected(self) -> int:
        """Bytes that certainly come next."""

    def take(self, source: bytes, begin: int, end: int) -> int:
        """Take what follows at `begin` in a source, and precedes `end`; returns where it ends. It
        takes nothing if it needs more to go on.

        Raises:
            HeadError: it is malformed or too large.
        """


class SizedBody:
    """A body whose size its head tells, see `Body`."""

    __slots__ = ("_size", "complete", "content")
    is_slow = False

    def __init__(self, size: int) -> None:
        self._size = size
        self.content = bytearray()
        self.complete = False

    @property
    def expected(self) -> int:
        """See `Body`."""
        return self._size - len(self.content)

    def take(self, source: bytes, begin: int, end: int) -> int:
        """See `Body`."""
        end = min(end, begin + self.expected)
        self.content += source[begin:end]
        self.complete = len(self.content) == self._size
        return end


class ChunkedBody:
    """A body in chunks, see `Body`.

    Args:
        bytes_max: largest content.
    """

    __slots__ = ("_bytes_max", "_framing_bytes", "_left", "_trailers", "complete", "content", "is_slow")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.content = bytearray()
        self.complete = self.is_slow = False
        # Bytes of the present chunk with its CRLF that are to come; 0 between chunks.
        self._left = 0
        # Bytes of sizes and line ends so far.
        self._framing_bytes = 0
        # The last chunk has come.
        self._trailers = False

    @property
    def expected(self) -> int:
        """See `Body`."""
        return self._left

    def take(self, source: bytes, begin: int, end: int) -> int:
        """See `Body`."""
        at = begin
        for _ in range(_CHUNKS_AT_ONCE):
            before = at
            if self._trailers:
                at = self._take_trailers(source, at, end)
            elif self._left:
                at = self._take_chunk(source, at, end)
            else:
                at = self._take_size(source, at, end)
            if at == before or self.complete:
                self.is_slow = False
                return at
        self.is_slow = True
        return at

    def _take_size(self, source: bytes, at: int, end: int) -> int:
        stop = source.find(b"\r\n", at, min(end, at + _SIZE_LINE_MAX))
        if stop < 0 and end - at < _SIZE_LINE_MAX and _is_begun(source[at:end]):
            return at
        digits = source[at : max(stop, at)]
        if not _SIZE.fullmatch(digits):
            raise HeadError(400, "the size of a chunk is 1 to 8 hexadecimal digits, and nothing follows it")
        size = int(digits, 16)
        if len(self.content) + size > self._bytes_max:
            raise HeadError(413, f"the body has more than {self._bytes_max} bytes")
        self._framing_bytes += stop + 4 - at
        if self._framing_bytes > len(self.content) + _FRAMING_BYTES_MAX:
            raise HeadError(413, "the chunks of the body are too small: most of its bytes are their sizes")
        if size:
            self._left = size + 2
            return stop + 2
        self._trailers = True
        # The CRLF also begins the empty line if there are no trailers.
        return stop

    def _take_chunk(self, source: bytes, at: int, end: int) -> int:
        if self._left > 2:
            stop = min(end, at + self._left - 2)
            self.content += source[at:stop]
            self._left -= stop - at
            return stop
        if not b"\r\n".startswith(source[at : min(end, at + 2)]):
            raise HeadError(400, "a chunk is longer than its size")
        if end - at < 2:
            return at
        self._left = 0
        return at + 2

    def _take_trailers(self, source: bytes, at: int, end: int) -> int:
        stop = source.find(b"\r\n\r\n", at, min(end, at + _TRAILERS_MAX))
        if stop < 0:
            if end - at >= _TRAILERS_MAX:
                raise HeadError(431, f"the trailers have more than {_TRAILERS_MAX} bytes")
            return at
        if stop > at:
            check_trailers(source[at + 2 : stop + 4])
        self.complete = True
        return stop + 4


def _is_begun(line: bytes) -> bool:
    """True for the begin of a line with the size of a chunk."""
    digits, _, rest = line.partition(b"\r")
    return not rest and (line == b"" or bool(_SIZE.fullmatch(digits)))
