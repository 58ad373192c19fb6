"""A stream of log lines that stops nobody.

A terminal, a pipe or a socket whose reader does not read blocks its writers, and lines are logged
on the event loop. So a text is written at once only where there is room for it, and else by a
thread, which waits for the reader.
"""

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_BYTES_MAX = 1 << 20
"""Text that waits for the reader; what comes then is left out."""
_ROOM_BYTES = select.PIPE_BUF
"""So much can be written without waiting to all that says that it can be written to."""
_CLOSE_S = 1.0
"""Time to write what waits at the end."""


class LogStream:
    """Text for a file descriptor. Methods are for any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_file = _is_file(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._condition = threading.Condition()
        # Texts that are not written yet, the first of which may be on its way; their bytes.
        self._texts: deque[bytes] = deque()
        self._bytes = 0
        self._left_out = 0
        threading.Thread(target=self._write_texts, name="log", daemon=True).start()

    def isatty(self) -> bool:
        """True for a terminal."""
        return os.isatty(self._fd)

    def write(self, text: str) -> None:
        """Have a text written; it is left out if too much waits."""
        encoded = text.encode(errors="backslashreplace")
        with self._condition:
            if not self._texts and self._has_room(len(encoded)):
                self._write(encoded)
                return
            if self._bytes + len(encoded) > _BYTES_MAX:
                self._left_out += 1
                return
            self._texts.append(encoded)
            self._bytes += len(encoded)
            self._condition.notify_all()

    def flush(self) -> None:
        """Nothing: whatever is written goes on its way at once."""

    def take_left_out(self) -> int:
        """Number of texts left out since the last call; 0 until half of the space is free."""
        with self._condition:
            if self._bytes > _BYTES_MAX // 2:
                return 0
            left_out, self._left_out = self._left_out, 0
            return left_out

    def drain(self) -> None:
        """Wait until everything is written, or nobody has read it for a second."""
        with self._condition:
            while self._texts:
                if not self._condition.wait(_CLOSE_S):
                    return

    def _has_room(self, size: int) -> bool:
        """True if so many bytes can be written without waiting."""
        return self._is_file or (size <= _ROOM_BYTES and bool(self._poll.poll(0)))

    def _write(self, text: bytes) -> None:
        left = memoryview(text)
        with suppress(OSError):  # Nobody reads it any more.
            while left:
                left = left[os.write(self._fd, left) :]

    def _write_texts(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._texts)
                text = self._texts[0]
            self._write(text)
            with self._condition:
                self._texts.popleft()
                self._bytes -= len(text)
                self._condition.notify_all()


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False  # it is closed


@contextmanager
def log_stream(fd: int) -> Iterator[LogStream]:
    """A stream of log lines during the `with` block; what waits at its end is written."""
    lines = LogStream(fd)
    try:
        yield lines
    finally:
        lines.drain()
