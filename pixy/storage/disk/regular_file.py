"""Kind and mode of the files of a data directory."""

import errno
import os
import stat
from pathlib import Path

# Whatever the umask: messages, secrets of nodes and the lock are for the daemon's user alone.
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def regular_file(fd: int, path: Path) -> int:
    """A descriptor of a regular file; any other is closed.

    Raises:
        OSError: EISDIR or EINVAL: it is of something else, such as a FIFO.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
