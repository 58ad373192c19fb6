"""Direct writes (O_DIRECT), for bytes that nobody reads soon: large flushes of the journal, which
are read after a crash only, and copies of partitions.

A write through the page cache copies into new pages, which costs more CPU time than the device
needs to store them, and evicts pages of use to readers. A direct write takes whole blocks of the
file, from memory with the same alignment. Hence the bytes are copied to a buffer at their alignment
in the file, the whole blocks are written directly, and the partial blocks at both ends through the
page cache.
"""

import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

DIRECT_BYTES_MIN = 256 << 10
"""Smaller writes gain nothing."""
_BLOCK_BYTES = 4096
"""Alignment that devices and file systems require of direct writes; a few require less."""
DIRECT_BYTES_MAX = 4 << 20
"""Larger writes are not direct."""
_BUFFER_BYTES = DIRECT_BYTES_MAX + (64 << 10)
_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
"""The kernel looks at each page of a direct write: two of them cost less than a thousand."""
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
"""0 on systems without this flag."""


class DirectWrites:
    """Direct writes to one open file; for one thread at a time.

    Args:
        fd: the file, open for writing. The caller keeps ownership.
    """

    __slots__ = ("_buffer", "_direct_fd", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # A second descriptor of the file; None without direct writes.
        self._direct_fd = _open_directly(fd)
        # Page-aligned; takes no memory before the first write to it.
        try:
            # Private: shared memory is slower to get, and has no huge pages.
            self._buffer = mmap.mmap(-1, _BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if _HUGE_PAGES is not None:
                with suppress(OSError):  # a kernel without them
                    self._buffer.madvise(_HUGE_PAGES)
        except OSError:
            self.close()  # no memory is left for it, so the page cache takes what is written

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], position: int, size: int) -> bool:
        """Write buffers with a total of `size` bytes. They are durable after a sync.

        Returns:
            False if a direct write is not possible: nothing has been written then.

        Raises:
            OSError: the write has failed; any part may have been written.
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
            # Another alignment is required; nothing has been written.
            self.close()
            return False
        write_all(self._fd, whole[lead:first], position)
        write_all(self._fd, whole[last:end], position + last - lead)
        return True

    def close(self) -> None:
        """Close the second descriptor."""
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
    """Write all of `data`, continuing short writes."""
    while data:
        written = os.pwrite(fd, data, position)
        position += written
        data = data[written:]
