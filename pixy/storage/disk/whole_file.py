"""Files that are read as a whole.

Nobody knows who made a file: its size is not believed. A sparse file of a terabyte takes no disk
space, and reading it would take all memory.
"""

import errno
from pathlib import Path

from pixy.storage.disk.disk import Disk

WHOLE_FILE_BYTES_MAX = 2 << 30
"""More than any file but a checkpoint has: a journal file has at most 1 GiB, or one flush with the
largest record batch, 1 GiB too.
"""
CHECKPOINT_BYTES_MAX = 8 << 30
"""A checkpoint is the state of a raft group, which takes several times that memory."""


def read_whole(disk: Disk, path: Path, bytes_max: int = WHOLE_FILE_BYTES_MAX) -> bytes:
    """Content of a file. Blocks.

    Raises:
        OSError: it cannot be read; EFBIG: it has more bytes than its format allows; ENOMEM: they do
            not fit into memory.
    """
    file = disk.open(path)
    try:
        size = file.size()
        if size > bytes_max:
            raise OSError(errno.EFBIG, f"it has {size} bytes, at most {bytes_max} are possible", str(path))
        return file.read_at(size, 0)
    except MemoryError as error:
        raise OSError(errno.ENOMEM, f"its {size} bytes do not fit into memory", str(path)) from error
    finally:
        file.close()
