import asyncio
import threading

import pytest

from pixy.backend import Batch
from pixy.consume.memory import unpacking
from pixy.consume.memory.unpacking import BatchUnpacker
from pixy.errors import UnpackedTooLarge
from pixy.records import COMPRESSION, UnpackedRecords, unpack_records
from tests.fakes.batches import batch_of, bomb

PATIENCE_S = 60.0


async def test_records_are_unpacked() -> None:
    batch = batch_of(b"a" * 100, b"b" * 100, compression=COMPRESSION["lz4"])
    assert [record.value for record in (await BatchUnpacker()(batch)).records] == [b"a" * 100, b"b" * 100]


@pytest.mark.slow
async def test_a_batch_that_decompresses_too_far_is_reported() -> None:
    with pytest.raises(UnpackedTooLarge, match="record batch at offset 0 cannot be decoded"):
        await BatchUnpacker()(bomb())


async def test_one_batch_at_a_time_is_unpacked_while_the_event_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    at_work = most = 0

    def slow(batch: Batch, unpacked_bytes_max: int, *, first_offset: int) -> UnpackedRecords:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE_S)
        at_work -= 1
        return unpack_records(batch, unpacked_bytes_max, first_offset=first_offset)

    monkeypatch.setattr(unpacking, "unpack_records", slow)
    unpacker = BatchUnpacker()
    batch = batch_of(b"a" * 100, compression=COMPRESSION["gzip"])
    waiting = [asyncio.create_task(unpacker(batch)) for _ in range(4)]
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        go_on.set()
        await asyncio.gather(*waiting)
    assert most == 1
