"""A unit that is written to the journal of a stopped node: a crash keeps or loses it as a whole."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from pixy.aio.futures import reject, resolve
from pixy.cluster.log import RecoveredNode
from pixy.config import JournalConfig
from pixy.errors import DataDirectoryError
from pixy.storage import Disk, Journal, JournalOptions, MakeWorker, UnitRecord


async def write_unit(
    disk: Disk,
    directory: Path,
    recovered: RecoveredNode,
    records: Sequence[UnitRecord],
    make_worker: MakeWorker,
) -> None:
    """Write records behind what a journal has; durable on return.

    Args:
        directory, recovered: data directory of a node, locked, and its contents.
        make_worker: makes the thread that writes, which is stopped on return.

    Raises:
        DataDirectoryError: the disk is full, or broken. On a full disk nothing has changed.
    """
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(reason: object) -> None:
        reject(written, DataDirectoryError(f"{directory} cannot be written: {reason}"))

    journal = Journal(
        disk,
        make_worker("pixy-journal", background=False),
        JournalOptions(
            directory / "journal",
            (recovered.identity.cluster_id, recovered.identity.node_id),
            JournalConfig().file_bytes,
            at=recovered.journal.at,
            files=recovered.journal.files,
        ),
        on_durable=lambda _: resolve(written, None),
        on_fault=fail,
        on_full=lambda: fail("the disk is full"),
    )
    journal.append(records, None)
    try:
        await written
    finally:
        journal.abandon()
