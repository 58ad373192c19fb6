import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pixy.storage import Disk
from pixy.storage.disk.whole_file import read_whole
from tests.sim.disk import SimulatedDisk

PATH = Path("/data/file")


class NeverRead:
    """A file of any size that must not be read."""

    def __init__(self, size: int, error: type[BaseException]) -> None:
        self._size = size
        self._error = error

    def size(self) -> int:
        return self._size

    def read_at(self, size: int, position: int) -> bytes:
        raise self._error

    def close(self) -> None: ...


class OneFile(SimulatedDisk):
    def __init__(self, file: Any) -> None:
        super().__init__(Random(1))
        self._file = file

    def open(self, path: Path, *, create: bool = False, background: bool = False) -> Any:
        return self._file


def test_a_file_up_to_the_limit_is_read() -> None:
    disk: Disk = SimulatedDisk(Random(1))
    disk.make_directory(PATH.parent)
    file = disk.open(PATH, create=True)
    file.write_at([b"0123456789"], 0)
    assert read_whole(disk, PATH, 10) == b"0123456789"
    with pytest.raises(OSError, match="it has 10 bytes, at most 9 are possible"):
        read_whole(disk, PATH, 9)


def test_a_larger_file_is_not_read() -> None:
    with pytest.raises(OSError, match="it has 42949672960 bytes, at most 2147483648 are possible") as raised:
        read_whole(OneFile(NeverRead(40 << 30, AssertionError)), PATH)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(PATH))


def test_a_file_that_does_not_fit_into_memory_is_an_error_of_the_disk() -> None:
    with pytest.raises(OSError, match="its 1000 bytes do not fit into memory") as raised:
        read_whole(OneFile(NeverRead(1000, MemoryError)), PATH)
    assert raised.value.errno == errno.ENOMEM
