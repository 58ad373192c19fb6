"""Staged writes as called by the APIs: limits only; checks are tested in tests/api."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pixy.backend import StagedBatches, StageSeal, TopicPartition
from pixy.clock import SystemClock
from pixy.config import ProxyConfig
from pixy.errors import ShuttingDown, Unavailable
from pixy.proxy import PartitionBatches
from pixy.proxy.log import Log
from pixy.proxy.staging import Staging
from pixy.proxy.topics import TopicCreator
from pixy.staging import NO_CLIENT, StageClient
from tests.fakes.backend import FakeBackend
from tests.fakes.batches import batch_of

T0 = TopicPartition("t", 0)


class SlowBackend(FakeBackend):
    """Accepts a piece when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = asyncio.Event()

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
        client: StageClient = NO_CLIENT,
    ) -> int:
        await self.may_go.wait()
        return await super().stage(sink_id, stage_id, piece, batches, seal, client)


async def make(buffer_bytes: int) -> tuple[Staging, SlowBackend]:
    backend = SlowBackend()
    await backend.start()
    await backend.create_topic("t", 1)
    config = replace(ProxyConfig(), producer=replace(ProxyConfig().producer, buffer_bytes=buffer_bytes))
    faults: list[BaseException] = []
    log = Log(backend, config, TopicCreator(backend, config, faults.append), SystemClock())
    return Staging(backend, config, log), backend


def ask(staging: Staging, piece: int, batch: bytes = batch_of(b"1")) -> "asyncio.Task[int]":
    partitions = [PartitionBatches(T0, batch)]
    return asyncio.create_task(staging.stage("sink", "stage", piece, partitions, [], None))


@pytest.mark.slow
async def test_pieces_wait_for_space_and_too_many_are_rejected() -> None:
    size = len(batch_of(b"1"))
    staging, backend = await make(2 * size)
    asked = [ask(staging, piece) for piece in range(5)]
    done, waiting = await asyncio.wait(asked, timeout=0.1)
    assert (len(done), len(waiting)) == (1, 4)
    with pytest.raises(Unavailable, match=r"buffer_bytes"):
        await done.pop()
    backend.may_go.set()
    await asyncio.wait(waiting)
    assert sorted(task.result() for task in waiting) == [size, 2 * size, 3 * size, 4 * size]
    assert await ask(staging, 9) == 5 * size


async def test_small_pieces_do_not_wait_behind_large_ones_that_wait_for_their_check() -> None:
    large = batch_of(*[bytes(40 + at % 2) for at in range(5000)])
    staging, backend = await make(len(large) * 5 // 2)
    backend.may_go.set()
    asked = [ask(staging, piece, large) for piece in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match=rf"{2 * len(large)} bytes of batches are being checked"):
        await ask(staging, 8, large)
    assert await ask(staging, 9) == len(batch_of(b"1"))
    assert await asyncio.gather(*asked) == [at * len(large) + len(batch_of(b"1")) for at in (1, 2, 3, 4)]
    assert (staging.semaphore.acquired, staging.semaphore.queued) == (0, 0)


async def test_a_piece_cancelled_while_it_is_checked_is_not_staged_and_frees_its_bytes() -> None:
    large = batch_of(*[bytes(40 + at % 2) for at in range(5000)])
    staging, backend = await make(len(large))
    backend.may_go.set()
    first = ask(staging, 0, large)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await ask(staging, 1) == len(batch_of(b"1"))
    assert staging.semaphore.acquired == 0


async def test_pieces_queued_when_a_drain_begins_are_rejected() -> None:
    staging, backend = await make(len(batch_of(b"1")))
    first, second = ask(staging, 0), ask(staging, 1)
    await asyncio.sleep(0)
    staging.begin_drain()
    backend.may_go.set()
    assert await first > 0
    with pytest.raises(ShuttingDown):
        await second
