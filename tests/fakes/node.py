"""A real node in this process, for tests of upper layers that need more than the fake backend."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pixy.backend import EmbeddedBackend
from pixy.clock import Clock, SystemClock
from pixy.cluster import Node, NodeOptions
from pixy.config import JournalConfig, LimitsConfig, StagingConfig, StorageConfig
from pixy.storage import Disk, RealDisk, ThreadWorker


def _raise(error: BaseException) -> None:
    raise AssertionError("the node broke") from error


def make_embedded(  # noqa: PLR0913  each is another part
    directory: Path,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    journal: JournalConfig | None = None,
    storage: StorageConfig | None = None,
    limits: LimitsConfig | None = None,
    staging: StagingConfig | None = None,
    on_fault: Callable[[BaseException], None] = _raise,
) -> EmbeddedBackend:
    """An embedded backend on `directory`, not started; everything left out is real and at its
    default.
    """
    clock = clock or SystemClock()
    options = NodeOptions(
        directory=directory,
        journal=journal or JournalConfig(),
        storage=storage or StorageConfig(),
        random_bytes=os.urandom,
        worker=ThreadWorker,
        limits=limits or LimitsConfig(),
        staging=staging or StagingConfig(),
    )
    return EmbeddedBackend(Node(disk or RealDisk(), clock, options, on_fault))


@asynccontextmanager
async def open_embedded(directory: Path) -> AsyncIterator[EmbeddedBackend]:
    """A started embedded backend, stopped at the end."""
    backend = make_embedded(directory)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()
