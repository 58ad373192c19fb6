"""pixy/proxy/topics.py: creation of topics on first use."""

import asyncio
from dataclasses import replace

import pytest

from pixy.backend import TopicDescription
from pixy.config import ProducerConfig, ProxyConfig
from pixy.errors import (
    Internal,
    InvalidTopic,
    PixyError,
    ShuttingDown,
    TopicMissing,
    Unavailable,
    UnknownTopic,
)
from pixy.faults import internal_error
from pixy.proxy.topics import TopicCreator
from tests.fakes.backend import FakeBackend


class SlowBackend(FakeBackend):
    """Creates topics when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.calls = 0
        self.error: Exception | None = None

    async def create_topic(self, name, partitions, config=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return await super().create_topic(name, partitions, config)


class Outcomes:
    def __init__(self) -> None:
        self.all: list[PixyError | None] = []
        self.faults: list[BaseException] = []
        self.arrived = asyncio.Event()

    def then(self) -> None:
        self.all.append(None)
        self.arrived.set()

    def fail(self, error: PixyError) -> None:
        self.all.append(error)
        self.arrived.set()

    def fault(self, error: BaseException) -> None:
        self.faults.append(error)

    async def count(self, number: int) -> None:
        """Wait for a number of outcomes."""
        while len(self.all) < number:
            self.arrived.clear()
            await self.arrived.wait()


async def make(
    enabled: bool = True,
    producer: ProducerConfig = ProducerConfig(),  # noqa: B008 - frozen
    patterns: tuple[str, ...] = (),
) -> tuple[TopicCreator, SlowBackend, Outcomes]:
    backend, outcomes = SlowBackend(), Outcomes()
    await backend.start()
    config = replace(
        ProxyConfig(),
        default_partitions=3,
        auto_create_topics=enabled,
        auto_create_patterns=patterns,
        producer=producer,
    )
    return TopicCreator(backend, config, outcomes.fault), backend, outcomes


async def test_all_requests_for_a_missing_topic_wait_for_one_creation() -> None:
    creator, backend, outcomes = await make()
    for _ in range(5):
        creator.create("t", 0, outcomes.then, outcomes.fail)
    backend.go.set()
    await outcomes.arrived.wait()
    assert outcomes.all == [None] * 5
    assert backend.calls == 1
    assert len((await backend.describe_topic("t")).partitions) == 3


async def test_a_topic_created_concurrently_by_others_is_used() -> None:
    creator, backend, outcomes = await make()
    creator.create("t", 0, outcomes.then, outcomes.fail)
    await FakeBackend.create_topic(backend, "t", 1)
    backend.go.set()
    await outcomes.arrived.wait()
    assert outcomes.all == [None]


async def test_a_rejected_creation_is_reported_to_all_waiters_and_may_be_retried() -> None:
    creator, backend, outcomes = await make()
    backend.error = Unavailable("no room")
    creator.create("t", 0, outcomes.then, outcomes.fail)
    creator.create("t", 0, outcomes.then, outcomes.fail)
    backend.go.set()
    await outcomes.arrived.wait()
    assert [str(error) for error in outcomes.all] == ["no room", "no room"]
    backend.error = None
    outcomes.arrived.clear()
    creator.create("t", 0, outcomes.then, outcomes.fail)
    await outcomes.arrived.wait()
    assert outcomes.all[-1] is None


async def test_a_bug_in_the_backend_is_a_fault_and_all_waiters_are_answered() -> None:
    creator, backend, outcomes = await make()
    backend.error = ZeroDivisionError("bug")
    creator.create("t", 0, outcomes.then, outcomes.fail)
    backend.go.set()
    await outcomes.arrived.wait()
    assert isinstance(outcomes.faults[0], ZeroDivisionError)
    assert str(outcomes.all[0]) == str(internal_error(outcomes.faults[0]))


async def test_topics_are_not_created_if_disabled() -> None:
    creator, backend, outcomes = await make(enabled=False)
    creator.create("t", 0, outcomes.then, outcomes.fail)
    await outcomes.arrived.wait()
    (refused,) = outcomes.all
    assert isinstance(refused, TopicMissing)
    assert str(refused) == "topic t does not exist, and auto_create_topics is off"
    assert backend.calls == 0


@pytest.mark.parametrize(
    ("name", "is_made"),
    [("orders-eu", True), ("tmp.1", True), ("order", False), ("Orders-eu", False), ("tmp.12", False)],
)
async def test_only_topics_that_a_pattern_matches_are_created(name: str, is_made: bool) -> None:
    creator, backend, outcomes = await make(patterns=("orders-*", "tmp.?"))
    backend.go.set()
    creator.create(name, 0, outcomes.then, outcomes.fail)
    await outcomes.arrived.wait()
    (refused,) = outcomes.all
    assert (refused is None) == is_made
    if not is_made:
        assert str(refused) == f"topic {name} does not exist, and none of auto_create_patterns matches it"
        assert isinstance(refused, TopicMissing)


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_topic_created_by_others_is_found_and_not_created(enabled: bool) -> None:
    """The metadata of a process may be older than a topic."""
    creator, backend, outcomes = await make(enabled=enabled)
    await FakeBackend.create_topic(backend, "t", 1)
    creator.create("t", 0, outcomes.then, outcomes.fail)
    await outcomes.arrived.wait()
    assert outcomes.all == [None]
    assert backend.calls == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "é", "x" * 250])
async def test_an_invalid_name_is_rejected_before_anything_happens(name: str) -> None:
    creator, backend, outcomes = await make()
    with pytest.raises(InvalidTopic):
        creator.create(name, 0, outcomes.then, outcomes.fail)
    assert backend.calls == 0


async def test_stopping_answers_all_waiters() -> None:
    creator, _, outcomes = await make()
    creator.create("t", 0, outcomes.then, outcomes.fail)
    await asyncio.sleep(0)
    await creator.stop()
    assert isinstance(outcomes.all[0], ShuttingDown)


async def test_stopping_at_once_answers_them_too() -> None:
    creator, _, outcomes = await make()
    creator.create("t", 0, outcomes.then, outcomes.fail)
    await creator.stop()
    assert isinstance(outcomes.all[0], ShuttingDown)


async def test_requests_that_wait_for_topics_are_bounded_in_number_and_size() -> None:
    limits = replace(ProducerConfig(), waiting_requests=3, buffer_bytes=1000, max_message_bytes=0)
    creator, backend, outcomes = await make(producer=limits)
    creator.create("t", 600, outcomes.then, outcomes.fail)
    with pytest.raises(Unavailable, match="1 requests wait"):
        creator.create("u", 600, outcomes.then, outcomes.fail)
    creator.create("t", 0, outcomes.then, outcomes.fail)
    creator.create("u", 0, outcomes.then, outcomes.fail)
    with pytest.raises(Unavailable, match="3 requests wait"):
        creator.create("u", 0, outcomes.then, outcomes.fail)
    backend.go.set()
    while len(outcomes.all) < 3:
        outcomes.arrived.clear()
        await outcomes.arrived.wait()
    creator.create("v", 600, outcomes.then, outcomes.fail)
    await creator.stop()


async def test_a_callback_that_raises_is_a_fault_and_the_others_are_answered() -> None:
    creator, backend, outcomes = await make()

    def broken() -> None:
        raise ZeroDivisionError("bug")

    creator.create("t", 0, broken, outcomes.fail)
    creator.create("t", 0, outcomes.then, outcomes.fail)
    backend.go.set()
    await outcomes.arrived.wait()
    assert outcomes.all == [None]
    assert isinstance(outcomes.faults[0], ZeroDivisionError)


async def test_a_topic_that_others_have_created_is_found() -> None:
    creator, backend, outcomes = await make()
    creator.find("t", outcomes.then, outcomes.fail)
    await outcomes.arrived.wait()
    assert isinstance(outcomes.all[0], UnknownTopic)
    assert backend.calls == 0, "it is not created"
    await FakeBackend.create_topic(backend, "t", 1)
    outcomes.arrived.clear()
    creator.find("t", outcomes.then, outcomes.fail)
    await outcomes.arrived.wait()
    assert outcomes.all[1:] == [None]


async def test_searches_for_topics_count_as_waiting_requests() -> None:
    creator, _, outcomes = await make(producer=ProducerConfig(waiting_requests=1))
    creator.find("t", outcomes.then, outcomes.fail)
    with pytest.raises(Unavailable, match="1 requests wait"):
        creator.find("t", outcomes.then, outcomes.fail)
    await creator.stop()
    assert [type(each) for each in outcomes.all] == [ShuttingDown]


async def test_one_search_answers_thousands_of_requests_in_steps() -> None:
    creator, backend, outcomes = await make()
    await FakeBackend.create_topic(backend, "here", 1)
    asked: list[list[str]] = []
    turns = 0

    async def list_topics(names: list[str]) -> list[TopicDescription]:
        asked.append(names)
        await asyncio.sleep(0)
        return list(await FakeBackend.list_topics(backend, names))

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    backend.list_topics = list_topics  # type: ignore[method-assign,assignment]
    creator.find("first", outcomes.then, outcomes.fail)
    await asyncio.sleep(0)
    for _ in range(1000):
        creator.find("here", outcomes.then, outcomes.fail)
        creator.find("gone", outcomes.then, outcomes.fail)
    for number in range(1000):
        creator.find(f"topic{number}", outcomes.then, outcomes.fail)
    turn()
    await outcomes.count(3001)
    assert sorted(names for each in asked for names in each) == sorted(
        ["first", "here", "gone", *(f"topic{number}" for number in range(1000))]
    )
    assert len(asked) <= 4
    assert outcomes.all.count(None) == 1000
    assert turns >= 6
    assert len(creator._search) == 0


async def test_a_search_that_fails_or_is_a_bug_answers_everybody() -> None:
    creator, backend, outcomes = await make()

    async def list_topics(names: list[str]) -> list[TopicDescription]:
        raise Unavailable("no leader") if names == ["a"] else ZeroDivisionError

    def broken() -> None:
        raise ZeroDivisionError

    backend.list_topics = list_topics  # type: ignore[method-assign,assignment]
    creator.find("a", broken, outcomes.fail)
    creator.find("a", outcomes.then, outcomes.fail)
    await outcomes.count(2)
    assert [type(each) for each in outcomes.all] == [Unavailable, Unavailable]
    creator.find("b", outcomes.then, outcomes.fail)
    creator.find("b", outcomes.then, outcomes.fail)
    await outcomes.count(4)
    assert [type(each) for each in outcomes.all[2:]] == [Internal, Internal]
    assert len(creator._search) == 0


async def test_a_request_whose_topic_is_found_may_be_refused_alone() -> None:
    creator, backend, outcomes = await make()
    await FakeBackend.create_topic(backend, "t", 1)

    def refused() -> None:
        raise InvalidTopic("no")

    creator.find("t", refused, outcomes.fail)
    creator.find("t", outcomes.then, outcomes.fail)
    await outcomes.count(2)
    assert [type(each) for each in outcomes.all] == [InvalidTopic, type(None)]
