"""pixy/backend/kafka/produce_queue.py: a look for batches without time ends at one with time."""

import asyncio
from math import inf

from pixy.aio.retries import Backoff
from pixy.backend import TopicPartition
from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.produce import Producer
from pixy.backend.kafka.produce_queue import PendingBatch, ProduceQueue
from pixy.errors import PixyError, Unavailable
from tests.conformance.support import make_batch
from tests.fakes.brokers import Brokers
from tests.sim.loop import VirtualLoop

T0 = TopicPartition("t", 0)
LIMIT_S = 2.0


def pending(deadline: float, limit_s: float = LIMIT_S) -> PendingBatch:
    return PendingBatch(bytearray(), 1, lambda *_: None, deadline, limit_s)


def queue_of(*batches: PendingBatch) -> ProduceQueue:
    queue = ProduceQueue(T0, b"", Backoff(0.01, 1.0), LIMIT_S)
    queue.pending.extend(batches)
    return queue


def test_the_look_ends_at_the_first_batch_that_has_time() -> None:
    late, in_time, behind = pending(1.0), pending(3.0), pending(4.0)
    del behind.deadline  # nobody looks at it
    assert queue_of(late, in_time, behind).expired(2.0) == ([late], 3.0)
    assert queue_of(late).expired(2.0) == ([late], inf)


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
