"""A reserve on a disk with a limit, for tests."""

import errno
from pathlib import Path

from pixy.cluster.log.disk_reserve import Reserve
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.worker import StepWorker

SIZE = 1 << 16


class Bench:
    """A reserve with a manual worker, on a disk with or without room for it."""

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
        """Run the worker's next job, or the next timer."""
        await self.worker.wait()
        self.worker.step()

    @property
    def size(self) -> int | None:
        """Size of the file, None if it does not exist."""
        return self.path.stat().st_size if self.path.exists() else None

    @property
    def blocked(self) -> bool:
        return self.reserve.blocked is not None
