"""pixy/backend/kafka/produce_queue.py: the order of batches, and those whose time is over."""

import asyncio
from collections.abc import Mapping, Sequence
from math import inf
from random import Random

import pytest

from pixy.aio.retries import Backoff
from pixy.backend import BATCH_MEMORY_BYTES, Batch, DividedPart, TopicPartition
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.produce import Producer
from pixy.backend.kafka.produce_queue import PendingBatch, ProduceQueue
from pixy.backend.protocol import AppendDone
from pixy.errors import MessageTooLarge, PixyError, Unavailable
from tests.conformance.support import make_batch
from tests.fakes.brokers import PRODUCE, Brokers
from tests.fakes.idempotent_log import IdempotentLog
from tests.sim.loop import VirtualLoop

T0 = TopicPartition("t", 0)
LIMIT_S = 2.0


def pending(deadline: float, limit_s: float = LIMIT_S) -> PendingBatch:
    return PendingBatch(bytearray(), 1, lambda *_: None, deadline, limit_s)


def queue_of(*batches: PendingBatch) -> ProduceQueue:
    queue = ProduceQueue(T0, b"", Backoff(0.01, 1.0), LIMIT_S)
    queue.pending.extend(batches)
    return queue


class Messages:
    """A callback of a batch of messages."""

    def __call__(self, offset: int, error: PixyError | None, /) -> None:
        """Nobody is told."""

    def divide(
        self, batch: Batch, faults: Mapping[int, PixyError], bytes_max: int | None = None
    ) -> Sequence[DividedPart]:
        raise NotImplementedError


class OfClient:
    """A callback of batches that a client appends together."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.answers: list[tuple[int, type[PixyError] | None]] = []

    def __call__(self, offset: int, error: PixyError | None, /) -> None:
        self.answers.append((offset, None if error is None else type(error)))


def test_batches_of_messages_and_of_each_client_take_turns_in_their_order() -> None:
    rng = Random(1)
    dones: dict[str, AppendDone] = {
        "messages": Messages(),
        "a": OfClient("a"),
        "b": OfClient("b"),
        "": lambda *_: None,
    }
    for _ in range(50):
        queue = queue_of()
        expected: dict[str, list[PendingBatch]] = {key: [] for key in dones}
        for _ in range(100):
            key = rng.choice(list(dones))
            added = PendingBatch(bytearray(), 1, dones[key], 1.0, LIMIT_S)
            first = queue.pending[0] if queue.pending else added
            queue.add(added)
            assert queue.pending[0] is first, "it may be in flight"
            expected[key].append(added)
            if rng.random() < 0.5:
                gone = rng.choice([queue.pending[0], rng.choice(list(queue))])
                queue.remove(gone)
                next(each for each in expected.values() if gone in each).remove(gone)
            for each, batches in expected.items():
                assert [batch for batch in queue if batch.done is dones[each]] == batches
            clients = [batch.client for batch in queue.pending if batch.client is not None]
            assert sorted(clients) == [client for client in ("a", "b") if expected[client]]


def test_the_look_ends_at_the_first_batch_that_has_time() -> None:
    late, in_time, behind = pending(1.0), pending(3.0), pending(4.0)
    del behind.deadline  # nobody looks at it
    assert queue_of(late, in_time, behind).expired(2.0) == ([late], 3.0)
    assert queue_of(late).expired(2.0) == ([late], inf)


def test_batches_of_a_client_that_wait_for_its_turn_are_found() -> None:
    done = OfClient("a")
    queue = queue_of()
    batches = [PendingBatch(bytearray(), 1, done, deadline, LIMIT_S) for deadline in (1.0, 1.5, 3.0, 4.0)]
    for batch in batches:
        queue.add(batch)
    assert queue.expired(2.0) == (batches[:2], 3.0)
    assert queue.expired(0.5) == ([], 1.0)


def test_a_batch_with_a_longer_limit_hides_none_behind_it() -> None:
    patient, late, in_time = pending(60.0, 60.0), pending(1.0), pending(3.0)
    assert queue_of(patient, late, in_time).expired(2.0) == ([late], 3.0)
    assert queue_of(patient, late).expired(2.0) == ([late], 60.0)


def test_batches_that_were_answered_in_flight_are_not_found_again() -> None:
    answered, late = pending(1.0), pending(1.0)
    answered.answered = True
    assert queue_of(answered, late).expired(2.0) == ([late], inf)


def test_the_looks_of_an_outage_are_few(virtual: asyncio.Runner) -> None:
    virtual.run(_outage())


async def _outage() -> None:
    """Thousands of batches, each at another time, for a partition without a leader."""
    brokers = Brokers({"t": [-1]})
    options = brokers.options(delivery_timeout_s=LIMIT_S)
    client = KafkaClient(options, brokers.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, options, faults.append)
    errors: list[PixyError | None] = []
    for _ in range(2000):
        producer.append(T0, make_batch(b"x"), 1, lambda _, error: errors.append(error))
        await asyncio.sleep(0.0005)
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1

    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.before_turns(count)
    await asyncio.sleep(LIMIT_S + 0.1)
    assert [type(error) for error in errors] == [Unavailable] * 2000
    assert turns < 500
    assert not faults
    await producer.stop()
    await client.stop()


def test_a_batch_has_its_own_time_behind_others(virtual: asyncio.Runner) -> None:
    virtual.run(_own_times())


async def _own_times() -> None:
    brokers = Brokers({"t": [-1]})
    options = brokers.options(delivery_timeout_s=LIMIT_S)
    client = KafkaClient(options, brokers.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, options, faults.append)
    loop = asyncio.get_running_loop()
    began = loop.time()
    answered: list[tuple[str, int]] = []

    class Named(Messages):
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, offset: int, error: PixyError | None, /) -> None:
            assert type(error) is Unavailable
            answered.append((self.name, round(10 * (loop.time() - began))))

    def append(name: str, age_s: float, *, of_messages: bool) -> None:
        done = Named(name)
        producer.append(T0, make_batch(b"x"), 1, done if of_messages else done.__call__, age_s)

    append("batch", 0.0, of_messages=False)
    append("new messages", 0.0, of_messages=True)
    append("old messages", 1.5, of_messages=True)
    append("old batch", 1.0, of_messages=False)
    await asyncio.sleep(LIMIT_S + 0.1)
    assert not faults
    assert answered == [("old messages", 5), ("old batch", 10), ("batch", 20), ("new messages", 20)]
    await producer.stop()
    await client.stop()


def test_the_memory_of_small_batches_counts(virtual: asyncio.Runner) -> None:
    virtual.run(_small_batches())


async def _small_batches() -> None:
    brokers = Brokers({"t": [-1]})
    options = brokers.options(delivery_timeout_s=LIMIT_S, buffer_bytes=100_000)
    client = KafkaClient(options, brokers.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, options, faults.append)
    errors: list[PixyError | None] = []
    batch = make_batch(b"x")
    while not errors:
        producer.append(T0, batch.copy(), 1, lambda _, error: errors.append(error))
    assert producer.buffered_bytes // (len(batch) + BATCH_MEMORY_BYTES) == 100_000 // (
        len(batch) + BATCH_MEMORY_BYTES
    )
    assert "slow down" in str(errors[0])
    await producer.stop()
    assert producer.buffered_bytes == 0
    await client.stop()


def test_a_batch_that_was_damaged_on_its_way_is_sent_again(virtual: asyncio.Runner) -> None:
    virtual.run(_damaged())


async def _damaged() -> None:
    log = IdempotentLog()
    corrupt = iter([2, 2, 0])
    log.judge = lambda _: (next(corrupt), {})
    options = log.options(delivery_timeout_s=LIMIT_S, retry_backoff_s=0.1)
    client = KafkaClient(options, log.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, options, faults.append)
    answers: list[tuple[int, PixyError | None]] = []
    producer.append(T0, make_batch(b"x"), 1, lambda *answer: answers.append(answer))
    await producer.written()
    assert (log.values, answers) == ([b"x"], [(0, None)])
    await producer.stop()
    await client.stop()
    assert not faults


def test_messages_do_not_wait_for_all_batches_of_a_client(virtual: asyncio.Runner) -> None:
    virtual.run(_flood())


async def _flood() -> None:
    """A client has appended more small batches than the broker writes within the time limit."""
    log = IdempotentLog()
    options = log.options(delivery_timeout_s=LIMIT_S)
    client = KafkaClient(options, log.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, options, faults.append)
    written: list[bytes] = []

    class Message(Messages):
        def __init__(self, value: bytes) -> None:
            self.value = value

        def __call__(self, offset: int, error: PixyError | None, /) -> None:
            assert error is None
            written.append(self.value)

    produce = log._produce

    async def produce_slowly(request: object) -> object:
        await asyncio.sleep(0.1)
        return produce(request)

    log.on(PRODUCE, produce_slowly)
    for number in range(100):
        producer.append(T0, make_batch(b"%d" % number), 1, lambda *_: None)
    for number in range(3):
        value = b"message %d" % number
        producer.append(T0, make_batch(value), 1, Message(value))
    await producer.stop()
    await client.stop()
    assert not faults
    assert written == [b"message 0", b"message 1", b"message 2"]
    assert log.values[:6] == [b"0", b"message 0", b"1", b"message 1", b"2", b"message 2"]
    others = [value for value in log.values if value not in written]
    assert others == [b"%d" % number for number in range(len(others))]


def test_a_client_does_not_wait_for_all_batches_of_another_one(virtual: asyncio.Runner) -> None:
    virtual.run(_turns_of_clients())


async def _turns_of_clients() -> None:
    log = IdempotentLog()
    client = KafkaClient(log.options(), log.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, log.options(), faults.append)
    flood, others = OfClient("a"), [OfClient("b"), OfClient("c")]
    for number in range(20):
        producer.append(T0, make_batch(b"%d" % number), 1, flood)
    for other in others:
        for number in range(2):
            producer.append(T0, make_batch(b"%s%d" % (other.client.encode(), number)), 1, other)
    producer.append(T0, make_batch(b"message"), 1, Messages())
    await producer.stop()
    await client.stop()
    assert not faults
    assert log.values[:9] == [b"0", b"message", b"b0", b"c0", b"1", b"b1", b"c1", b"2", b"3"]
    assert [value for value in log.values if value and value.isdigit()] == [
        b"%d" % number for number in range(20)
    ]
    assert [offset for offset, _ in others[1].answers] == [3, 6]


def test_a_batch_that_fails_leaves_no_hole_in_what_a_client_appends(virtual: asyncio.Runner) -> None:
    virtual.run(_refused_among_others())


async def _refused_among_others() -> None:
    log = IdempotentLog()
    log.bytes_max = 1000
    client = KafkaClient(log.options(), log.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, log.options(), faults.append)
    together, later = OfClient("a"), OfClient("a")
    for value in (b"1", bytes(2000), b"3", b"4"):
        producer.append(T0, make_batch(value), 1, together)
    producer.append(T0, make_batch(b"5"), 1, later)
    await producer.written()
    assert together.answers == [(0, None), *[(-1, MessageTooLarge)] * 3]
    assert log.values == [b"1", b"5"]
    await producer.stop()
    assert producer.buffered_bytes == 0
    assert producer.limits.batch_bytes_max("t") == 1000, "it is asked for"
    await client.stop()
    assert not faults


@pytest.mark.parametrize("behind_messages", [False, True])
def test_batches_that_a_client_appends_together_fail_at_one_time(
    virtual: asyncio.Runner, behind_messages: bool
) -> None:
    virtual.run(_timed_out_together(behind_messages))


async def _timed_out_together(behind_messages: bool) -> None:
    """Else the leader may come between the ends of their times, and the last ones are written."""
    brokers = Brokers({"t": [-1]})
    options = brokers.options(delivery_timeout_s=LIMIT_S)
    client = KafkaClient(options, brokers.dial)
    await client.start()
    faults: list[BaseException] = []
    producer = Producer(client, options, faults.append)
    first, second = OfClient("a"), OfClient("b")
    if behind_messages:
        producer.append(T0, make_batch(b"message"), 1, Messages(), -60.0)
    for done in (first, second):
        for _ in range(3):
            producer.append(T0, make_batch(b"x"), 1, done)
            await asyncio.sleep(0.1)
    await asyncio.sleep(LIMIT_S - 0.55)
    assert first.answers == [(-1, Unavailable)] * 3
    assert second.answers == []
    await asyncio.sleep(0.3)
    assert second.answers == [(-1, Unavailable)] * 3
    await producer.stop()
    await client.stop()
    assert not faults
