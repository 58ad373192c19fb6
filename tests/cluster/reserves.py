"""A reserve on a disk with a limit, for tests."""

import errno
from pathlib import Path

from pixy.cluster.reserve import Reserve
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.worker import StepWorker

__all__ = ["SIZE", "Bench"]

SIZE = 1 << 16


class Bench:
    """A reserve whose worker runs when the test says so, on a disk that has room for it or not."""

    def __init__(self, directory: Path, size: int = SIZE) -> None:
        self.path = directory / "reserve"
        self.disk = RecordingDisk()
        self.worker = StepWorker()
        self.waiting = False
        self.reserve = Reserve(self.disk, directory, size, self.worker, lambda: self.waiting)

    def no_room(self, error: int = errno.ENOSPC) -> None:
        def before(call: Call) -> None:
            if call.what == "allocate":
                self.path.write_bytes(b"as far as there was room")
                raise OSError(error, "no room")

        self.disk.before = before

    async def step(self) -> None:
        """Run what is on the worker, or what comes next."""
        await self.worker.wait()
        self.worker.step()

    @property
    def size(self) -> int | None:
        """Of the file, None if there is none."""
        return self.path.stat().st_size if self.path.exists() else None

    @property
    def blocked(self) -> bool:
        return self.reserve.blocked is not None
