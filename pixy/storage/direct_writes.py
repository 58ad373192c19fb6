"""Writes past the page cache, for bytes that nobody reads again unless a crash makes them: the large flushes of a journal.

What goes through the page cache is copied into new pages, which takes the processor longer than the device needs to store it, and takes
the room of pages that readers want. A direct write takes whole blocks of the file, from memory that is aligned like them. So the bytes
are copied to where they lie in memory as they will in the file, the whole blocks go directly, and what is in front of them and behind
them goes as every write does.
"""

import errno
import mmap
import os
from collections.abc import Sequence

__all__ = ["DIRECT_BYTES_MIN", "DirectWrites", "write_all"]

DIRECT_BYTES_MIN = 256 << 10
"""Smaller writes gain nothing."""
_BLOCK_BYTES = 4096
"""What devices and file systems want direct writes to be aligned to; a few want less."""
_BUFFER_BYTES = (4 << 20) + (64 << 10)
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
"""0 where the system has no direct writes, or others."""


class DirectWrites:
    """Direct writes to one open file; for one thread at a time.

    Args:
        fd: the file, open for writing. It stays the caller's.
    """

    __slots__ = ("_buffer", "_direct_fd", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Another descriptor of the same file, None where there are no direct writes.
        self._direct_fd = _open_directly(fd)
        # Aligned to pages; takes no memory before it is written to.
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], position: int, size: int) -> bool:
        """Write buffers of `size` bytes together. They are not durable without a sync.

        Returns:
            False if that cannot be done directly: nothing has changed then.

        Raises:
            OSError: as a write; any part may be written.
        """
        lead = position % _BLOCK_BYTES
        end = lead + size
        if end > _BUFFER_BYTES or self._direct_fd is None:
            return False
        self._buffer.seek(lead)
        for buffer in buffers:
            self._buffer.write(buffer)
        whole = memoryview(self._buffer)
        first, last = lead + -lead % _BLOCK_BYTES, end - end % _BLOCK_BYTES
        try:
            write_all(self._direct_fd, whole[first:last], position + first - lead)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # It wants another alignment, and has written nothing.
            self.close()
            return False
        write_all(self._fd, whole[lead:first], position)
        write_all(self._fd, whole[last:end], position + last - lead)
        return True

    def close(self) -> None:
        """Let go of what it has opened."""
        if self._direct_fd is not None:
            os.close(self._direct_fd)
            self._direct_fd = None


def _open_directly(fd: int) -> int | None:
    if not _O_DIRECT:
        return None
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT)
    except OSError:
        return None


def write_all(fd: int, data: memoryview, position: int) -> None:
    """Write however often it takes until all of `data` is written."""
    while data:
        written = os.pwrite(fd, data, position)
        position += written
        data = data[written:]
