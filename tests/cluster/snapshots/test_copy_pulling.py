"""The destination's side of a copy session."""

import asyncio
import threading
import time
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from pixy.aio.tasks import Tasks
from pixy.cluster.snapshots.copy_pulling import (
    CopyFetchingOptions,
    CopyMethod,
    CopyPulling,
    FetchedChunk,
)
from pixy.copies import CopyDownload, CopyProgress
from pixy.proto.copies_pb2 import BeginCopyResponse, FetchCopyRequest
from pixy.records import read_header
from pixy.storage import ThreadWorker
from tests.copies.sources import Source, log_of

SECONDS = 20.0
LOG = log_of(60, Random(7))
END = read_header(LOG[-1]).next_offset


class Copy(SimpleNamespace):
    """A copy that takes a chunk only once the next one has been asked for."""

    def __init__(self) -> None:
        super().__init__(replica=SimpleNamespace(raft_group=1000), snapshot=SimpleNamespace(index=77))
        self.descriptor = SimpleNamespace(end_offset=END)
        self.download = CopyDownload(0, END, 1 << 20, begins=True)
        self.progress = CopyProgress()
        self.producers: bytes | None = None
        self.asked = threading.Semaphore(0)
        self.found: list[bytes] = []

    def check_needed(self) -> None: ...

    def take(self, chunk: FetchedChunk) -> None:
        assert self.asked.acquire(timeout=SECONDS)
        if chunk.answer.position + len(chunk.data) < chunk.answer.total_bytes:
            assert self.asked.acquire(timeout=SECONDS), "the next chunk was not asked for meanwhile"
            self.asked.release()
        self.found += [bytes(each) for each in self.download.take(*chunk[:3])]


@pytest.mark.slow
@pytest.mark.parametrize("clients_write", [False, True])
async def test_a_copy_keeps_to_its_pace_while_clients_write_at_its_source(clients_write: bool) -> None:
    begun = time.monotonic()
    await pulled(clients_write=clients_write, bytes_per_second=sum(map(len, LOG)) // 2)
    # Two seconds, less a quarter of one whose bytes come at once.
    assert (time.monotonic() - begun >= 1.5) is clients_write


async def test_the_source_reads_the_next_chunk_while_one_is_taken() -> None:
    await pulled(clients_write=False)


async def test_a_copy_that_lacks_no_record_gets_the_producers_from_its_source() -> None:
    copy = Copy()
    copy.download.restart(END, begins=False)
    await pulled(copy, clients_write=False)
    assert (copy.producers, copy.found) == (b"producers", [])


async def pulled(copy: Copy | None = None, *, clients_write: bool, bytes_per_second: int = 1 << 30) -> None:
    """Pull a copy, of which each chunk is taken once the next one has been asked for."""
    lacks_all, source = copy is None, Source(LOG, [20, 40])
    copy = Copy() if copy is None else copy

    async def call(node_id: int, method: CopyMethod, payload: bytes, timeout_s: float) -> bytes:
        if method is CopyMethod.BEGIN:
            return BeginCopyResponse(session=1, producers=b"producers").SerializeToString()
        if method is CopyMethod.END:
            return b""
        copy.asked.release()
        answer = source.answer(FetchCopyRequest.FromString(payload))
        answer.clients_write = clients_write
        return answer.SerializeToString()

    faults: list[BaseException] = []
    tasks, worker = Tasks(faults.append), ThreadWorker("copies")
    node_log: Any = SimpleNamespace(
        copying=worker, incarnation=SimpleNamespace(number=5), clients_write=False
    )
    options = CopyFetchingOptions(chunk_bytes=1000, chunk_bytes_max=1000, bytes_per_second=bytes_per_second)
    pulling = CopyPulling(node_log, call, tasks, options)
    any_copy: Any = copy
    await asyncio.wait_for(pulling.pull(any_copy, [2]), 2 * SECONDS)
    await tasks.wait_all()
    worker.stop()
    assert (copy.found, faults) == (LOG if lacks_all else [], [])
