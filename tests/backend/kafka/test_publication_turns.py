"""Publications of one client address leave turns to those of others; batches of a transaction have
their time when they are first in their partition.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pixy.backend import Published, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.produce import Producer, TransactionalId
from pixy.backend.kafka.produce_queue import ProducerId
from pixy.backend.kafka.publication_turns import PublicationTurns
from pixy.backend.kafka.send_stages import STAGES_WINDOW_BYTES, StageSender
from pixy.errors import MessageTooLarge, Unavailable
from pixy.staging import StageClient
from pixy.storage import RealDisk, StagedPart
from tests.conformance.support import make_batch
from tests.fakes.brokers import INIT_PRODUCER_ID, OFFSET_FETCH, PRODUCE, Brokers
from tests.fakes.waiting import settle
from tests.fakes.worker import InlineWorker
from tests.kafka.backends import staging_place

ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSET = 25, 26, 28
MESSAGE_TOO_LARGE = 10
FIRST, SECOND = StageClient("first", 0), StageClient("second", 0)
T0 = TopicPartition("t", 0)
LIMIT_S = 2.0


class Sinks(Brokers):
    """Keeps the epochs of sinks. Answers wait for sinks that are named in `held`, by request."""

    def __init__(self) -> None:
        super().__init__({"t": [0]})
        self.epochs: dict[str, int] = {}
        self.held: dict[int, str] = {}
        self.go_on = asyncio.Event()
        # Held requests.
        self.waiting = 0
        self.on(OFFSET_FETCH, self._read)
        self.on(INIT_PRODUCER_ID, lambda _: (0, 0, 7, 0))
        self.on(ADD_OFFSETS, self._add)
        self.on(COMMIT_OFFSET, self._commit)
        self.on(END_TRANSACTION, lambda _: (0, 0))

    async def _hold(self, key: int, sink: str) -> None:
        if sink.startswith(self.held.get(key, "none of them")):
            self.waiting += 1
            await self.go_on.wait()

    async def _read(self, request: Any) -> tuple[Any, ...]:
        await self._hold(OFFSET_FETCH, request.group)
        epoch = self.epochs.get(request.group, -1)
        return 0, [("__consumer_offsets", [(0, epoch, -1, "q", 0, {})], {})], 0, {}

    async def _add(self, request: Any) -> tuple[Any, ...]:
        await self._hold(ADD_OFFSETS, request.group)
        return 0, 0

    def _commit(self, request: Any) -> tuple[Any, ...]:
        ((topic, ((number, self.epochs[request.group], _),)),) = request.topics
        return 0, [(topic, [(number, 0)])]


@asynccontextmanager
async def open_sinks(sinks: Sinks, directory: Path) -> AsyncIterator[KafkaBackend]:
    options = sinks.options(request_timeout_s=600.0, delivery_timeout_s=60.0)
    place = staging_place(directory / "none", client_share_percent=50)
    backend = KafkaBackend(options, place, dial=sinks.dial)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


@pytest.mark.parametrize(("held", "at_once"), [(OFFSET_FETCH, 4), (ADD_OFFSETS, 2)], ids=["read", "send"])
def test_an_address_has_its_share_of_the_turns(
    virtual: asyncio.Runner, tmp_path: Path, held: int, at_once: int
) -> None:
    virtual.run(_shares(tmp_path, held, at_once))


async def _shares(directory: Path, held: int, at_once: int) -> None:
    sinks = Sinks()
    sinks.held = {held: "pixy-sink-slow"}
    async with open_sinks(sinks, directory) as backend:
        slow = [
            asyncio.create_task(backend.publish(f"slow-{number}", 0, "q", [], client=FIRST))
            for number in range(20)
        ]
        await settle()
        for epoch in range(3):
            published = await backend.publish("quick", epoch, "q", [], client=SECOND)
            assert published == Published(True, epoch)
        assert sinks.waiting == at_once
        sinks.go_on.set()
        assert await asyncio.gather(*slow) == [Published(True, 0)] * 20


async def test_an_address_has_its_share_of_the_publications_in_progress() -> None:
    turns = PublicationTurns(50)
    held = [turns.in_progress("first") for _ in range(500)]
    for each in held:
        each.__enter__()
    with pytest.raises(Unavailable, match="500 publications of clients of this address") as raised:
        turns.in_progress("first").__enter__()
    assert raised.value.limit == "client_share_percent of unfinished publications"
    with turns.in_progress("second"):
        pass
    for each in held:
        each.__exit__(None, None, None)
    with turns.in_progress("first"):
        pass


def test_one_sink_publishes_in_the_order_of_the_calls(virtual: asyncio.Runner, tmp_path: Path) -> None:
    virtual.run(_order(tmp_path))


async def _order(directory: Path) -> None:
    async with open_sinks(Sinks(), directory) as backend:
        calls = [
            backend.publish("one", epoch, "q", [], client=(FIRST, SECOND)[epoch % 2]) for epoch in range(8)
        ]
        assert await asyncio.gather(*calls) == [Published(True, epoch) for epoch in range(8)]
        assert not backend._staged._turns._locks


class SlowLog(Brokers):
    """Writes each batch in a tenth of a second, and refuses one of them."""

    def __init__(self, refused: int = -1) -> None:
        super().__init__({"t": [0]})
        self.batches = 0
        self._refused = refused
        self.on(PRODUCE, self._write)

    async def _write(self, request: Any) -> tuple[Any, ...]:
        await asyncio.sleep(0.1)
        ((topic, ((number, _),)),) = request.topics
        self.batches += 1
        code = MESSAGE_TOO_LARGE if self.batches == self._refused else 0
        return [(topic, [(number, code, self.batches, -1, 0, [], None)])], 0


async def tell_nothing(_: object) -> Mapping[str, int]:
    """Limits of topics: the batches are sent as they are."""
    return {}


async def send_stage(log: Brokers, directory: Path, batches: int) -> None:
    """Send a stage as a transaction."""
    content = make_batch(b"x") * batches
    (directory / "stage").write_bytes(content)
    options = log.options(delivery_timeout_s=LIMIT_S, request_timeout_s=LIMIT_S)
    client = KafkaClient(options, log.dial)
    await client.start()
    faults: list[BaseException] = []
    transaction = TransactionalId("sink", ProducerId(7, 0))
    producer = Producer(client, options, faults.append, transaction)
    try:
        sender = StageSender(producer, RealDisk(), InlineWorker("test"), STAGES_WINDOW_BYTES, tell_nothing)
        await sender.send([(T0, StagedPart(directory / "stage", len(content), batches))])
    finally:
        await client.stop()
        assert not faults
        assert producer.buffered_bytes == 0


def test_batches_of_a_publication_do_not_run_out_of_time_behind_others(
    virtual: asyncio.Runner, tmp_path: Path
) -> None:
    """All of them take several times the time of one."""
    log = SlowLog()
    virtual.run(send_stage(log, tmp_path, 100))
    assert log.batches == 100


def test_nothing_is_sent_behind_a_refused_batch_of_a_publication(
    virtual: asyncio.Runner, tmp_path: Path
) -> None:
    log = SlowLog(refused=5)
    with pytest.raises(MessageTooLarge):
        virtual.run(send_stage(log, tmp_path, 100))
    assert log.batches <= 6


def test_a_publication_whose_partition_has_no_leader_fails_once_the_time_of_one_batch_is_over(
    virtual: asyncio.Runner, tmp_path: Path
) -> None:
    log = SlowLog()
    log.topics["t"] = [-1]
    with pytest.raises(Unavailable, match="could not be written within 2 s: the partition has no leader"):
        virtual.run(send_stage(log, tmp_path, 100))
    assert virtual.get_loop().time() < 2 * LIMIT_S
