"""Start and stop: accepted work is finished, and nothing happens afterwards."""

import asyncio

import pytest

from pixy.backend import Backend, OffsetCommit, TopicPartition
from pixy.errors import PixyError, ShuttingDown
from tests.conformance.implementations import Capability
from tests.conformance.support import PATIENCE, Assignments, append_nowait, make_batch

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
async def _topic(backend: Backend) -> None:
    await backend.create_topic("orders", 1)


async def test_a_started_cluster_becomes_ready_and_has_no_fault(backend: Backend) -> None:
    async with asyncio.timeout(PATIENCE):
        await backend.wait_ready()
    assert backend.fault == ""


@pytest.mark.needs(Capability.ONE_PROCESS)
async def test_stop_finishes_accepted_work(backend: Backend) -> None:
    appends = [append_nowait(backend, ORDERS, b"%d" % at) for at in range(20)]
    await backend.stop()
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*appends) == list(range(20))


async def test_stop_may_be_called_again(backend: Backend) -> None:
    async with asyncio.timeout(PATIENCE):
        await backend.stop()
        await backend.stop()


async def test_an_append_after_stop_is_answered_with_an_error(backend: Backend) -> None:
    await backend.stop()
    answer: asyncio.Future[tuple[int, PixyError | None]] = asyncio.get_running_loop().create_future()
    backend.append(ORDERS, make_batch(b"v"), 1, lambda offset, error: answer.set_result((offset, error)))
    async with asyncio.timeout(PATIENCE):
        offset, error = await answer
    assert offset == -1
    assert isinstance(error, ShuttingDown)


async def test_changes_after_stop_are_rejected(backend: Backend) -> None:
    await backend.stop()
    with pytest.raises(ShuttingDown):
        await backend.create_topic("late", 1)
    with pytest.raises(ShuttingDown):
        await backend.commit_offsets("group", {ORDERS: OffsetCommit(1)})
    assert backend.topic("late") is None


async def test_members_get_no_notification_of_the_stop(backend: Backend) -> None:
    assignments = Assignments()
    membership = await backend.join_consumer_group("group", "me", ["orders"], assignments)
    await assignments.wait({"orders": [0]})
    await backend.stop()
    async with asyncio.timeout(PATIENCE):
        await membership.leave()
    assert assignments.calls == [{"orders": [0]}]


async def test_a_cancelled_topic_creation_leaves_a_complete_topic_or_none(backend: Backend) -> None:
    creation = asyncio.create_task(backend.create_topic("cancelled", 2))
    await asyncio.sleep(0)
    creation.cancel()
    await asyncio.gather(creation, return_exceptions=True)
    # Either outcome is valid; in both cases the name can be used afterwards.
    existing = {each.name: each for each in await backend.list_topics()}.get("cancelled")
    assert existing is None or len(existing.partitions) == 2
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(backend.create_topic("cancelled", 2), return_exceptions=True)
    assert len((await backend.describe_topic("cancelled")).partitions) == 2
