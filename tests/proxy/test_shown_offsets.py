"""The offsets of a consumer group as they are shown, beside begin and end of each partition."""

import asyncio
from random import Random

import pytest

from pixy.backend import OffsetCommit
from pixy.clock import SystemClock
from pixy.config import ProxyConfig
from pixy.proxy import Proxy
from pixy.records import TopicPartition
from tests.fakes.backend import FakeBackend
from tests.fakes.waiting import settle

PARTITION = TopicPartition("t", 0)


def on(backend: FakeBackend) -> Proxy:
    def fault(error: BaseException) -> None:
        raise AssertionError("a fault") from error

    return Proxy(
        "test", ProxyConfig(), backend, client_id="me", clock=SystemClock(), rng=Random(1), on_fault=fault
    )


def holding(records: int) -> FakeBackend:
    backend = FakeBackend(topics={"t": 1})
    backend.add_gap(PARTITION, records)
    return backend


def commit(backend: FakeBackend, offset: int) -> None:
    backend.groups.set_offsets("g", {PARTITION: OffsetCommit(offset)}, 1)


@pytest.mark.parametrize(
    ("begin", "end", "offset", "lag"),
    [(0, 9, 4, 5), (3, 9, 3, 6), (3, 9, 1, 6), (3, 9, 0, 6), (9, 9, 1, 0), (0, 9, 9, 0), (0, 9, 12, 0)],
)
async def test_lag_counts_the_records_that_are_there(begin: int, end: int, offset: int, lag: int) -> None:
    backend = holding(end)
    backend.move_log_begin(PARTITION, begin)
    commit(backend, offset)
    (offsets,) = await on(backend).get_offsets("g", "t")
    assert (offsets.begin, offsets.end, offsets.offset, offsets.lag) == (begin, end, offset, lag)


async def test_no_committed_offset_is_shown_beyond_the_end_that_is_shown() -> None:
    backend = holding(0)
    backend.gates = {"committed": asyncio.Event(), "offset_ranges": asyncio.Event()}
    asked = asyncio.create_task(on(backend).get_offsets("g", "t"))
    for gate in ("offset_ranges", "committed"):
        await settle()
        # Records are written and acked between any two answers of the cluster.
        backend.add_gap(PARTITION, 1)
        commit(backend, backend.log(PARTITION).end)
        backend.gates.pop(gate).set()
    (offsets,) = await asked
    assert offsets.offset <= offsets.end


async def test_no_offset_of_a_deleted_topic_is_shown_with_the_end_of_its_successor() -> None:
    backend = holding(7)
    commit(backend, 7)
    backend.gates["offset_ranges"] = asyncio.Event()
    asked = asyncio.create_task(on(backend).get_offsets("g", "t"))
    await settle()
    backend.delete("t")
    backend.create("t", 1)
    backend.gates.pop("offset_ranges").set()
    (offsets,) = await asked
    assert (offsets.offset, offsets.end) == (-1, 0)
