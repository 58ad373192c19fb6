"""A journal on a recording disk, with a manual worker."""

import asyncio
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pixy.storage import (
    Journal,
    JournalFile,
    JournalOptions,
    RecordKind,
    RecoveredJournal,
    UnitRecord,
    recover_journal,
)
from pixy.storage.journal import JournalPosition
from pixy.storage.journal.gathered_units import FreesSpace
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import StepWorker
from tests.storage.journals import OWNER

HEAD = 60
FLUSH_OF_ONE = 40 + HEAD
EMPTY = JournalPosition(0, 0, 1)
ENTRY = RecordKind.ENTRY


def original(
    index: int, payload: bytes = b"payload", raft_group: int = 1000, kind: int = ENTRY
) -> UnitRecord:
    return kind, 1, raft_group, index, 1, 0, None, payload


class Bench:
    """A journal on a recording disk, with a manual worker."""

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes: int = 4096,
        at: JournalPosition = EMPTY,
        files: Iterable[JournalFile] = (),
        worker: StepWorker | None = None,
        spare_bytes: int = 0,
        frees_space: FreesSpace = lambda _, __: False,
    ) -> None:
        self.directory = directory
        self.disk = RecordingDisk()
        self.worker = StepWorker() if worker is None else worker
        self.durable: list[list[Any]] = []
        self.faults: list[BaseException] = []
        self.journal = Journal(
            self.disk,
            self.worker,
            JournalOptions(directory, OWNER, file_bytes, at, list(files), spare_bytes),
            on_durable=lambda tokens: self.durable.append(list(tokens)),
            on_fault=self.faults.append,
            frees_space=frees_space,
        )
        self._tokens = itertools.count(1)
        self._last: dict[int, int] = {}

    def append(self, payload: bytes = b"payload", raft_group: int = 1000) -> None:
        """Append an entry; its token counts the entries of all groups."""
        index = self._last[raft_group] = self._last.get(raft_group, 0) + 1
        self.journal.append([original(index, payload, raft_group)], next(self._tokens))

    def append_unit(self, *records: UnitRecord) -> None:
        """Append several records, or none, as one unit."""
        self.journal.append(records, next(self._tokens))

    async def flush(self) -> None:
        """Run one iteration of the loop, then the worker's jobs."""
        await asyncio.sleep(0)
        while self.worker:
            self.worker.step()
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Run the worker until everything is written and acknowledged."""
        drained = asyncio.create_task(self.journal.drained())
        while not drained.done():
            if self.worker:
                self.worker.step()
            await asyncio.sleep(0)

    def what(self, *kinds: str) -> list[str]:
        return [call.what for call in self.disk.calls if call.what in kinds]

    def recover(self) -> RecoveredJournal:
        return recover_journal(RecordingDisk(), self.directory, OWNER)


async def written(bench: Bench, count: int, payload: bytes = b"payload") -> None:
    """Append entries of as many groups and write them in one flush, whose first piece is then
    acknowledged.
    """
    for group in range(count):
        bench.append(payload, raft_group=1000 + group)
    await bench.worker.wait()
    bench.worker.step()
