"""Staged writes: invisible before a publication, complete, ordered and exactly once after it; and
rejected calls.
"""

import asyncio

import pytest

from pixy.backend import Backend, Published, StageSeal, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.errors import FailedPrecondition, InvalidArgument, UnknownPartition
from tests.conformance.implementations import Capability
from tests.conformance.staged import piece_of, publish_values, seal_of, stage_values
from tests.conformance.support import PATIENCE, append, fetch_now, offsets, values

pytestmark = pytest.mark.needs(Capability.STAGING)

ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("orders", 1)


@pytest.fixture(autouse=True)
async def _topic(backend: Backend) -> None:
    await backend.create_topic("orders", 2)


async def read(backend: Backend, partition: TopicPartition = ORDERS) -> list[bytes | None]:
    """All values of a partition; checks that no offset occurs twice, and that only Kafka's
    transactions leave holes.
    """
    found: list[bytes | None] = []
    at = 0
    while True:
        result = await fetch_now(backend, partition, at)
        if result.next_offset == at:
            return found
        if isinstance(backend, KafkaBackend):
            assert all(at <= each < result.next_offset for each in offsets(result))
        else:
            assert offsets(result) == list(range(at, result.next_offset))
        found += values(result)
        at = result.next_offset


@pytest.mark.slow
async def test_staged_records_are_visible_only_after_publication(backend: Backend) -> None:
    await append(backend, ORDERS, b"before")
    await stage_values(backend, "sink", "stage", {ORDERS: [b"1", b"2"], OTHERS: [b"3"]})
    assert await read(backend) == [b"before"]
    published = await backend.publish("sink", 7, "query", ["stage"])
    assert published == Published(True, 7)
    assert {topic: records for topic, (records, _) in published.written.items()} == {"orders": 3}
    await append(backend, ORDERS, b"behind")
    assert await read(backend) == [b"before", b"1", b"2", b"behind"]
    assert await read(backend, OTHERS) == [b"3"]


@pytest.mark.slow
async def test_a_publication_wakes_waiting_fetches(backend: Backend) -> None:
    waiting = asyncio.create_task(backend.fetch(ORDERS, 0, max_bytes=1000, max_wait=PATIENCE))
    await asyncio.sleep(0)
    await publish_values(backend, 0, {ORDERS: [b"1"]})
    assert values(await waiting) == [b"1"]


@pytest.mark.slow
async def test_pieces_become_visible_in_the_order_of_their_numbers_and_stages_in_that_of_the_call(
    backend: Backend,
) -> None:
    pieces = [piece_of({ORDERS: [b"%d" % number]}) for number in range(3)]
    for number in (2, 0, 1):
        await backend.stage("sink", "b", number, pieces[number])
    await backend.stage("sink", "b", 0, [], seal_of(*pieces))
    await stage_values(backend, "sink", "a", {ORDERS: [b"a"]})
    await backend.publish("sink", 0, "query", ["b", "a"])
    assert await read(backend) == [b"0", b"1", b"2", b"a"]


@pytest.mark.slow
async def test_an_epoch_is_published_once(backend: Backend) -> None:
    await publish_values(backend, 5, {ORDERS: [b"1"]})
    await stage_values(backend, "sink", "again", {ORDERS: [b"2"]})
    assert await backend.publish("sink", 5, "query", ["again"]) == Published(False, 5)
    assert await backend.publish("sink", 4, "query", ["stage-5"]) == Published(False, 5)
    assert await read(backend) == [b"1"]
    assert await backend.publish("sink", 6, "query", ["again"]) == Published(True, 6)
    assert await read(backend) == [b"1", b"2"]


async def test_an_empty_epoch_may_be_published(backend: Backend) -> None:
    assert await backend.publish("sink", 0, "query", []) == Published(True, 0)
    assert await backend.publish("sink", 0, "query", []) == Published(False, 0)


async def test_an_empty_stage_can_be_sealed_and_published(backend: Backend) -> None:
    await backend.stage("sink", "empty", 0, [], seal_of())
    assert await backend.publish("sink", 0, "query", ["empty"]) == Published(True, 0)


async def test_concurrent_calls_with_one_epoch_publish_once(backend: Backend) -> None:
    await stage_values(backend, "sink", "stage", {ORDERS: [b"1"]})
    answers = await asyncio.gather(*(backend.publish("sink", 0, "query", ["stage"]) for _ in range(5)))
    assert sorted(answers) == [Published(False, 0)] * 4 + [Published(True, 0)]
    assert await read(backend) == [b"1"]


@pytest.mark.slow
async def test_a_sink_belongs_to_a_query_until_it_is_reset(backend: Backend) -> None:
    await publish_values(backend, 5, {ORDERS: [b"1"]})
    await stage_values(backend, "sink", "new", {ORDERS: [b"2"]})
    with pytest.raises(FailedPrecondition, match=r"query"):
        await backend.publish("sink", 0, "other", ["new"])
    assert await read(backend) == [b"1"]
    assert await backend.publish("sink", 0, "other", ["new"], reset=True) == Published(True, 0)
    # A retry after a lost answer changes nothing.
    assert await backend.publish("sink", 0, "other", ["new"], reset=True) == Published(False, 0)
    assert await read(backend) == [b"1", b"2"]


@pytest.mark.slow
async def test_a_replaced_query_does_not_take_its_sink_back(backend: Backend) -> None:
    await publish_values(backend, 5, {ORDERS: [b"1"]})
    await stage_values(backend, "sink", "new", {ORDERS: [b"2"]})
    with pytest.raises(FailedPrecondition, match=r"query"):
        await backend.publish("sink", 0, "other", ["new"], replaces="another")
    assert await backend.publish("sink", 0, "other", ["new"], replaces="query") == Published(True, 0)
    assert await backend.publish("sink", 0, "other", ["new"], replaces="query") == Published(False, 0)
    await stage_values(backend, "sink", "old", {ORDERS: [b"3"]})
    for replaces in ("", "query", "another"):
        with pytest.raises(FailedPrecondition, match=r"other"):
            await backend.publish("sink", 6, "query", ["old"], replaces=replaces)
    assert await read(backend) == [b"1", b"2"]


async def test_a_piece_is_stored_once_however_often_it_is_sent(backend: Backend) -> None:
    piece = piece_of({ORDERS: [b"1"]})
    size = await backend.stage("sink", "stage", 0, piece)
    assert size == sum(len(each.batches) for each in piece)
    assert await backend.stage("sink", "stage", 0, piece) == size
    assert await backend.stage("sink", "stage", 0, piece, seal_of(piece)) == size
    assert await backend.stage("sink", "stage", 0, piece, seal_of(piece)) == size
    assert await backend.stage("sink", "stage", 0, piece) == size
    await backend.publish("sink", 0, "query", ["stage"])
    assert await read(backend) == [b"1"]


async def test_another_piece_with_the_same_number_is_rejected(backend: Backend) -> None:
    piece = piece_of({ORDERS: [b"1"]})
    await backend.stage("sink", "stage", 0, piece)
    with pytest.raises(InvalidArgument, match=r"piece 0"):
        await backend.stage("sink", "stage", 0, piece_of({ORDERS: [b"2"]}))
    await backend.stage("sink", "stage", 0, [], seal_of(piece))
    await backend.publish("sink", 0, "query", ["stage"])
    assert await read(backend) == [b"1"]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["a missing piece", "a piece too many", "another checksum"])
async def test_a_wrong_seal_is_rejected(backend: Backend, wrong: str) -> None:
    pieces = [piece_of({ORDERS: [b"%d" % number]}) for number in range(3)]
    for number, piece in enumerate(pieces):
        await backend.stage("sink", "stage", number, piece)
    seals = {
        "a missing piece": seal_of(*pieces, pieces[0]),
        "a piece too many": seal_of(*pieces[:2]),
        "another checksum": StageSeal(3, seal_of(*pieces).crc ^ 1),
    }
    with pytest.raises(FailedPrecondition):
        await backend.stage("sink", "stage", 0, [], seals[wrong])
    with pytest.raises(FailedPrecondition):
        await backend.publish("sink", 0, "query", ["stage"])
    await backend.stage("sink", "stage", 0, [], seal_of(*pieces))
    await backend.publish("sink", 0, "query", ["stage"])
    assert await read(backend) == [b"0", b"1", b"2"]


async def test_a_sealed_stage_takes_no_more_pieces(backend: Backend) -> None:
    await stage_values(backend, "sink", "stage", {ORDERS: [b"1"]})
    with pytest.raises(FailedPrecondition, match=r"sealed"):
        await backend.stage("sink", "stage", 1, piece_of({ORDERS: [b"2"]}))
    with pytest.raises(FailedPrecondition):
        await backend.stage("sink", "stage", 0, [], StageSeal(1, 0))


async def test_one_unpublishable_stage_keeps_the_others(backend: Backend) -> None:
    await stage_values(backend, "sink", "whole", {ORDERS: [b"1"]})
    await backend.stage("sink", "open", 0, piece_of({ORDERS: [b"2"]}))
    await stage_values(backend, "another", "theirs", {ORDERS: [b"3"]})
    for bad in ("open", "unknown", "theirs"):
        with pytest.raises(FailedPrecondition):
            await backend.publish("sink", 0, "query", ["whole", bad])
    assert await read(backend) == []
    assert await backend.publish("sink", 0, "query", ["whole"]) == Published(True, 0)


async def test_a_published_stage_cannot_be_published_again(backend: Backend) -> None:
    await publish_values(backend, 0, {ORDERS: [b"1"]})
    with pytest.raises(FailedPrecondition):
        await backend.publish("sink", 1, "query", ["stage-0"])
    assert await read(backend) == [b"1"]


@pytest.mark.slow
async def test_a_discarded_stage_is_gone_and_a_published_one_stays(backend: Backend) -> None:
    await publish_values(backend, 0, {ORDERS: [b"1"]})
    await stage_values(backend, "sink", "unwanted", {ORDERS: [b"2"]})
    await backend.discard("sink", ["unwanted", "stage-0", "unknown"])
    with pytest.raises(FailedPrecondition):
        await backend.publish("sink", 1, "query", ["unwanted"])
    assert await read(backend) == [b"1"]


async def test_a_missing_partition_cannot_be_staged_for(backend: Backend) -> None:
    with pytest.raises(UnknownPartition):
        await backend.stage("sink", "stage", 0, piece_of({TopicPartition("orders", 2): [b"1"]}))
    with pytest.raises(UnknownPartition):
        await backend.stage("sink", "stage", 0, piece_of({TopicPartition("unknown", 0): [b"1"]}))


async def test_a_topic_with_staged_records_is_deleted_only_by_force(backend: Backend) -> None:
    await stage_values(backend, "sink", "stage", {ORDERS: [b"1"]})
    with pytest.raises(FailedPrecondition, match=r"sink"):
        await backend.delete_topic("orders")
    await backend.delete_topic("orders", force=True)
    await backend.create_topic("orders", 2)
    with pytest.raises(FailedPrecondition, match=r"orders"):
        await backend.publish("sink", 0, "query", ["stage"])
    assert await read(backend) == []


@pytest.mark.slow
async def test_published_or_discarded_stages_keep_no_topic(backend: Backend) -> None:
    await publish_values(backend, 0, {ORDERS: [b"1"]})
    await stage_values(backend, "sink", "unwanted", {ORDERS: [b"2"]})
    await backend.discard("sink", ["unwanted"])
    await backend.delete_topic("orders")
