"""Simulated disks for tests, and their content."""

from pathlib import Path
from random import Random

from tests.sim.disk import SimulatedDisk

DIRECTORY = Path("/data")
PATH = DIRECTORY / "file"
SEEDS = range(200)


def make(seed: int = 1) -> SimulatedDisk:
    """A disk with an empty, durable file."""
    disk = SimulatedDisk(Random(seed))
    disk.make_directory(DIRECTORY)
    disk.open(PATH, create=True).sync()
    disk.sync_directory(DIRECTORY)
    return disk


def content(disk: SimulatedDisk, path: Path = PATH) -> bytes:
    file = disk.open(path)
    return file.read_at(file.size(), 0)


def put(disk: SimulatedDisk, name: str, value: str) -> None:
    """Create a file with durable content and a name that is not durable."""
    file = disk.open(DIRECTORY / name, create=True)
    file.write_durably([value.encode()], 0)
    file.close()


def put_durably(disk: SimulatedDisk, name: str, value: str) -> None:
    put(disk, name, value)
    disk.sync_directory((DIRECTORY / name).parent)


def make_directory(disk: SimulatedDisk, name: str = "d") -> None:
    """Create a directory with two files, all durable."""
    disk.make_directory(DIRECTORY / name)
    put(disk, f"{name}/a", "1")
    put_durably(disk, f"{name}/b", "2")
