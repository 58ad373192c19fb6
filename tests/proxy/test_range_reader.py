"""pixy/proxy/range_reader.py: waits and ends of ranges, and their memory."""

from collections import deque

import pytest

from pixy.backend import FetchResult, TopicPartition
from pixy.errors import InvalidArgument, InvalidTopic, PixyError, Unavailable
from pixy.proxy import Range, RangeReader, RangeState
from tests.fakes.backend import FakeBackend
from tests.fakes.batches import batch_of
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until

T0 = TopicPartition("t", 0)
BATCH = batch_of(b"a")
NOTHING = FetchResult((), 0, 0, 0)
ONE = FetchResult((BATCH,), 1, 0, 1)


class Scripted(FakeBackend):
    """A cluster with slow, scripted fetches. `asked` has max_bytes and max_wait of each."""

    def __init__(self, clock: FakeClock, *script: tuple[float, FetchResult | PixyError]) -> None:
        super().__init__()
        self._clock = clock
        self._script = deque(script)
        self.asked: list[tuple[int, float | None]] = []

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        self.asked.append((max_bytes, max_wait))
        seconds, result = self._script.popleft()
        self._clock.advance(seconds)
        if isinstance(result, PixyError):
            raise result
        return result


async def scripted(
    *script: tuple[float, FetchResult | PixyError], to_offset: int = -1, max_wait: float = 10
) -> tuple[RangeReader, Scripted]:
    clock = FakeClock()
    backend = Scripted(clock, *script)
    await backend.start()
    await backend.create_topic("t", 1)
    wanted = Range(T0, 0, to_offset)
    return RangeReader(backend, clock, wanted, max_bytes=1000, max_wait=max_wait), backend


async def states(reader: RangeReader) -> list[RangeState]:
    """The states of all reads, to the end."""
    found: list[RangeState] = []
    while not found or found[-1] is RangeState.MORE:
        await reader.wait()
        found.append((await reader.read()).state)
    return found


async def test_existing_records_are_read_without_waiting_and_then_one_batch_is_awaited() -> None:
    reader, backend = await scripted((0, ONE), (3, NOTHING), (7, NOTHING))
    assert await states(reader) == [RangeState.MORE, RangeState.MORE, RangeState.END_OF_RANGE]
    assert backend.asked == [(1000, 0), (1, 10), (1, 7)]


async def test_a_wait_that_ends_early_continues_for_the_remaining_time() -> None:
    reader, backend = await scripted((0, NOTHING), (1, NOTHING), (2, NOTHING), (7, NOTHING), to_offset=5)
    assert await states(reader) == [*[RangeState.MORE] * 3, RangeState.END_OF_LOG]
    assert [wait for _, wait in backend.asked] == [0, 10, 9, 7]


async def test_the_wait_time_restarts_when_records_arrive() -> None:
    reader, backend = await scripted((0, NOTHING), (9, ONE), (10, ONE))
    assert (await states(reader))[-1] is RangeState.END_OF_RANGE
    assert [wait for _, wait in backend.asked] == [0, 10, 10]


async def test_records_that_arrived_during_the_wait_are_read_next() -> None:
    reader, _ = await scripted((0, NOTHING), (1, ONE))
    await reader.read()
    await reader.wait()
    fetched = await reader.read()
    assert (list(fetched.batches), fetched.next_offset, fetched.state) == ([BATCH], 1, RangeState.MORE)


async def test_empty_fetches_below_the_end_are_not_repeated_without_limit() -> None:
    stuck = FetchResult((), 0, 0, 5)
    reader, backend = await scripted((0, stuck), max_wait=0)
    assert await states(reader) == [RangeState.END_OF_RANGE]
    reader, backend = await scripted((0, stuck), (10, stuck), to_offset=5)
    assert await states(reader) == [RangeState.MORE, RangeState.END_OF_LOG]
    assert backend.asked == [(1000, 0), (1, 10)]


@pytest.mark.parametrize("to_offset", [-1, 5])
async def test_the_end_of_a_replica_is_confirmed_before_it_is_the_end_of_the_log(to_offset: int) -> None:
    behind = NOTHING._replace(is_confirmed=False)
    read = ONE._replace(is_confirmed=False)
    reader, backend = await scripted(
        (0, behind), (10, behind), (0, ONE), (0, read), (10, behind), (0, NOTHING), to_offset=to_offset
    )
    found = await states(reader)
    assert found[:-1] == [RangeState.MORE] * 5
    assert found[-1] is (RangeState.END_OF_RANGE if to_offset < 0 else RangeState.END_OF_LOG)
    assert [wait for _, wait in backend.asked] == [0, 10, 0, 10, 10, 0]


async def replaced(backend: FakeBackend, *batches: bytes) -> None:
    """Replace the topic with one of the same name with these batches."""
    await backend.delete_topic("t")
    await backend.create_topic("t", 1)
    for batch in batches:
        backend.append(T0, bytearray(batch), 1, lambda _offset, _error: None)
    await until(lambda: not backend.held_appends)


class Replacing(FakeBackend):
    """A cluster whose topic is replaced, during a fetch, by another one of its name with these
    batches.
    """

    batches: tuple[bytes, ...] = ()

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        await replaced(self, *self.batches)
        return await super().fetch(partition, offset, max_bytes=max_bytes, max_wait=max_wait)


@pytest.mark.parametrize("batches", [(BATCH, BATCH), ()])
async def test_records_of_a_topic_created_meanwhile_are_not_returned(batches: tuple[bytes, ...]) -> None:
    backend = Replacing()
    await backend.start()
    await backend.create_topic("t", 1)
    backend.batches = batches
    reader = RangeReader(backend, FakeClock(), Range(T0, 1, -1), max_bytes=1000, max_wait=0)
    fetched = await reader.read()
    assert (list(fetched.batches), fetched.state) == ([], RangeState.UNKNOWN_PARTITION)


async def test_a_range_does_not_continue_in_a_topic_created_between_two_reads() -> None:
    backend = FakeBackend()
    await backend.start()
    await backend.create_topic("t", 1)
    await replaced(backend, BATCH, BATCH)
    reader = RangeReader(backend, FakeClock(), Range(T0, 0, -1), max_bytes=1, max_wait=0)
    assert (await reader.read()).next_offset == 1
    await replaced(backend, BATCH, BATCH, BATCH)
    fetched = await reader.read()
    assert (list(fetched.batches), fetched.state) == ([], RangeState.UNKNOWN_PARTITION)


async def test_a_temporary_error_does_not_end_the_range() -> None:
    reader, _ = await scripted((0, Unavailable("no leader")))
    with pytest.raises(Unavailable, match="no leader"):
        await reader.read()


@pytest.mark.parametrize(
    ("wanted", "error", "text"),
    [
        (Range(TopicPartition("", 0), 0, -1), InvalidTopic, "invalid topic name ''"),
        (Range(T0, -1, -1), InvalidArgument, "from_offset of t-0 is -1, expected 0 or above"),
        (Range(T0, 5, 4), InvalidArgument, "to_offset of t-0 is 4, expected from_offset 5 or above, or -1"),
        (Range(T0, 0, -2), InvalidArgument, "to_offset of t-0 is -2"),
        (Range(T0, 0, 1, b"x"), InvalidArgument, "topic_id of t-0 has 1 bytes, expected none or 16"),
    ],
)
def test_an_invalid_range_is_named(wanted: Range, error: type[PixyError], text: str) -> None:
    with pytest.raises(error) as caught:
        wanted.check()
    assert text in str(caught.value)


def test_empty_and_open_ranges_are_valid() -> None:
    for wanted in (Range(T0, 5, 5), Range(T0, 5, -1), Range(T0, 0, 2**63 - 1, bytes(16))):
        wanted.check()
