"""A publication asks and waits for Kafka; its stages are discarded meanwhile, or their topic is
replaced by another one of its name. What is published has all records of its stages, and the topic
that replaces another one has none of them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.backend import Published, TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.errors import FailedPrecondition, Internal, PixyError, UnknownPartition
from pixy.records import read_records
from pixy.staging import StageName
from tests.backend.kafka.test_publication_turns import ADD_OFFSETS, END_TRANSACTION, Sinks
from tests.conformance.staged import stage_values
from tests.fakes.brokers import DESCRIBE_CONFIGS, METADATA, PRODUCE
from tests.fakes.waiting import settle
from tests.fakes.worker import InlineWorker
from tests.kafka.backends import staging_place

DELETE_TOPICS, ADD_PARTITIONS = 20, 24
T0 = TopicPartition("t", 0)


class Transactions(Sinks):
    """Writes what is committed, and pauses before a request.

    Attributes:
        values: what was written.
        paused, resumed: a request waits; it goes on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bytes | None] = []
        self.paused, self.resumed = asyncio.Event(), asyncio.Event()
        self._pause = (-1, 0)
        self._open: list[bytes | None] = []
        self.on(ADD_PARTITIONS, lambda _: (0, []))
        self.on(DESCRIBE_CONFIGS, lambda _: (0, []))
        self.on(PRODUCE, self._produce)
        self.on(END_TRANSACTION, self._end)

    def pause_before(self, key: int, number: int = 1) -> None:
        """Pause before a request that comes from now on."""
        self._pause = key, self.count(key) + number

    async def answer(self, struct: Any, node_id: int) -> Any:
        if self._pause == (struct.api.key, self.count(struct.api.key) + 1):
            self.paused.set()
            await self.resumed.wait()
        return await super().answer(struct, node_id)

    def _produce(self, request: Any) -> tuple[Any, ...]:
        ((topic, ((number, batch),)),) = request.topics
        self._open += [each.value for each in read_records(batch)]
        return [(topic, [(number, 0, 0, -1, 0, [], None)])], 0

    def _end(self, request: Any) -> tuple[int, int]:
        if request.committed:
            self.values += self._open
        self._open.clear()
        return 0, 0


@asynccontextmanager
async def open_backend(log: Transactions, directory: Path) -> AsyncIterator[KafkaBackend]:
    """A backend with the stages `1` and `2`."""
    place = replace(staging_place(directory / "kafka"), worker=InlineWorker)
    backend = KafkaBackend(log.options(), place, dial=log.dial)
    await backend.start()
    try:
        for value in (b"1", b"2"):
            await stage_values(backend, "sink", value.decode(), {T0: [value]})
        yield backend
    finally:
        await backend.stop()


@pytest.mark.parametrize("discarded", [["1"], ["1", "2"]])
def test_stages_that_are_discarded_during_their_publication_are_published(
    virtual: asyncio.Runner, tmp_path: Path, discarded: list[str]
) -> None:
    async def scenario() -> None:
        log = Transactions()
        async with open_backend(log, tmp_path) as backend:
            log.pause_before(METADATA, 2)
            publishing = asyncio.create_task(backend.publish("sink", 0, "q", ["1", "2"]))
            await log.paused.wait()
            await backend.discard("sink", discarded)
            log.resumed.set()
            assert (await publishing).published
            assert log.values == [b"1", b"2"]

    virtual.run(scenario())


def test_stages_that_are_discarded_before_their_publication_refuse_it(
    virtual: asyncio.Runner, tmp_path: Path
) -> None:
    """The epoch is published with other stages."""

    async def scenario() -> None:
        log = Transactions()
        async with open_backend(log, tmp_path) as backend:
            log.pause_before(METADATA)
            publishing = asyncio.create_task(backend.publish("sink", 0, "q", ["1", "2"]))
            await log.paused.wait()
            await backend.discard("sink", ["1"])
            log.resumed.set()
            with pytest.raises(FailedPrecondition, match="stage 1 of sink sink does not exist"):
                await publishing
            assert log.epochs == {}
            await stage_values(backend, "sink", "1 again", {T0: [b"1"]})
            assert (await backend.publish("sink", 0, "q", ["1 again", "2"])).published
            assert log.values == [b"1", b"2"]

    virtual.run(scenario())


def test_an_epoch_is_not_published_without_one_of_its_stages(virtual: asyncio.Runner, tmp_path: Path) -> None:
    """Whatever has removed it."""

    async def scenario() -> None:
        log = Transactions()
        async with open_backend(log, tmp_path) as backend:
            log.pause_before(ADD_PARTITIONS)
            publishing = asyncio.create_task(backend.publish("sink", 0, "q", ["1", "2"]))
            await log.paused.wait()
            stages = backend._staged._stages
            assert stages is not None
            stage = stages.get(StageName("sink", "1"))
            assert stage is not None
            stages.remove([stage], lambda: None)
            log.resumed.set()
            with pytest.raises(Internal, match="stage 1 of sink sink is gone"):
                await publishing
            assert log.epochs == {}
            assert await backend.publish("sink", 0, "q", []) == Published(True, 0)
            assert log.values == []

    virtual.run(scenario())


@pytest.mark.parametrize(
    ("before", "error"),
    [(ADD_PARTITIONS, FailedPrecondition), (DESCRIBE_CONFIGS, UnknownPartition)],
    ids=["begin", "first batch"],
)
def test_a_topic_that_replaces_the_one_of_a_publication_gets_no_records(
    virtual: asyncio.Runner, tmp_path: Path, before: int, error: type[PixyError]
) -> None:
    async def scenario() -> None:
        log = Transactions()
        async with open_backend(log, tmp_path) as backend:
            log.pause_before(before)
            publishing = asyncio.create_task(backend.publish("sink", 0, "q", ["1", "2"]))
            await log.paused.wait()
            log.topic_ids["t"] = b"another"
            await backend._client.refresh(["t"])
            log.resumed.set()
            with pytest.raises(error, match="topic t was deleted"):
                await publishing
            assert log.count(PRODUCE) == 0
            assert log.epochs == {}

    virtual.run(scenario())


@pytest.mark.parametrize("force", [False, True], ids=["others", "force"])
def test_a_topic_that_is_replaced_while_a_publication_waits_to_send_gets_no_records(
    virtual: asyncio.Runner, tmp_path: Path, force: bool
) -> None:
    async def scenario() -> None:
        log = Transactions()
        log.on(DELETE_TOPICS, lambda _: (0, [("t", 0)]))
        log.held = {ADD_OFFSETS: "pixy-sink-slow"}
        async with open_backend(log, tmp_path) as backend:
            slow = [asyncio.create_task(backend.publish(f"slow-{each}", 0, "q", [])) for each in range(4)]
            publishing = asyncio.create_task(backend.publish("sink", 0, "q", ["1", "2"]))
            await settle()
            if force:
                topics, log.topics = log.topics, {}
                await backend.delete_topic("t", force=True)
                log.topics = topics
            log.topic_ids["t"] = b"another"
            log.go_on.set()
            await asyncio.gather(*slow)
            with pytest.raises(
                FailedPrecondition, match="topic t was deleted since records of it were staged"
            ):
                await publishing
            assert log.count(PRODUCE) == 0

    virtual.run(scenario())
