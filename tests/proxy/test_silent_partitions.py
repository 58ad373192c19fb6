"""pixy/proxy/silent_partitions.py: partitions that do not answer have half of the producer's
buffer, and records for others do not wait behind theirs.
"""

import asyncio
from random import Random

import pytest

from pixy.backend import TopicPartition
from pixy.config import ProducerConfig
from pixy.errors import PixyError, Unavailable
from pixy.proxy import silent_partitions
from pixy.proxy.accumulator import Accumulators
from pixy.records import make_partitioner
from tests.fakes.backend import FakeBackend
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle, until
from tests.proxy.producing import TOPIC, Answers, append, flat, make
from tests.proxy.producing import batches as batches_of

DEAD = "dead"
OUTAGE = 100_000


async def make_two(
    options: ProducerConfig, *, leaderless: bool, others_answer: bool = True
) -> tuple[Accumulators, FakeBackend, Answers]:
    accumulators, backend, answers = await make(options)
    accumulators._silent._others_answer = others_answer
    await backend.create_topic(DEAD, 1)
    if leaderless:
        backend.set_leader(TopicPartition(DEAD, 0), -1)
    backend.hold_appends()
    return accumulators, backend, answers


async def test_an_outage_of_all_has_the_whole_buffer() -> None:
    options = ProducerConfig(channel_buffer_size=8)
    accumulators, backend, answers = await make_two(options, leaderless=True, others_answer=False)
    for _ in range(8):
        assert append(accumulators, b"x", answers, topic=DEAD) is None
    with pytest.raises(Unavailable, match=r"dead-0 takes no messages.* the producer's buffer is full"):
        append(accumulators, b"x", answers, topic=DEAD)
    assert append(accumulators, b"honest", answers) is None, "that may answer"
    backend.release_appends()
    await accumulators.drained()


async def test_a_partition_that_answers_beside_silent_ones_takes_half_from_them() -> None:
    options = ProducerConfig(channel_buffer_size=8)
    accumulators, backend, answers = await make_two(options, leaderless=True, others_answer=False)
    append(accumulators, b"x", answers, topic=DEAD)
    await until(lambda: backend.held_appends)
    append(accumulators, b"honest", answers)
    await until(lambda: backend.held_appends == 2)
    [honest] = list(accumulators._silent._in_flight)
    accumulators._silent.answered(honest, None)
    for _ in range(3):
        assert append(accumulators, b"x", answers, topic=DEAD) is None
    with pytest.raises(Unavailable, match="their half of the producer's buffer is full"):
        append(accumulators, b"x", answers, topic=DEAD)
    backend.release_appends()
    await accumulators.drained()


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize(
    ("options", "size"),
    [(ProducerConfig(channel_buffer_size=8), 1), (ProducerConfig(buffer_bytes=800), 100)],
    ids=["messages", "bytes"],
)
async def test_a_partition_without_a_leader_leaves_half_of_the_buffer(
    options: ProducerConfig, size: int, key: bytes | None, sync: bool
) -> None:
    accumulators, backend, answers = await make_two(options, leaderless=True)
    value = b"x" * (size - len(key or b""))
    append(accumulators, value, answers, topic=DEAD, key=key, sync=sync)
    await until(lambda: backend.held_appends)
    for _ in range(3):
        assert append(accumulators, value, answers, topic=DEAD, key=key, sync=sync) is None
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"dead-0 takes no messages at present .*it has no leader"):
            append(accumulators, value, answers, topic=DEAD, key=key, sync=sync)
        for _ in range(2):
            assert append(accumulators, value, answers, key=key) is None
    assert append(accumulators, value, answers, key=key) is not None
    with pytest.raises(Unavailable, match="dead-0 takes no messages"):
        append(accumulators, value, answers, topic=DEAD, key=key, sync=sync)
    assert accumulators.waiting == 1
    backend.release_appends()
    await accumulators.drained()
    assert accumulators.buffered == accumulators.buffered_bytes == 0
    assert len(flat(await batches_of(backend))) == 5


async def test_what_answers_again_may_have_the_whole_buffer_again() -> None:
    accumulators, backend, answers = await make_two(ProducerConfig(channel_buffer_size=8), leaderless=True)
    for _ in range(2):
        append(accumulators, b"a", answers, topic=DEAD)
        await until(lambda: backend.held_appends)
        backend.set_leader(TopicPartition(DEAD, 0), 1)
        backend.release_appends()
        await accumulators.drained()
        backend.hold_appends()
        for _ in range(8):
            assert append(accumulators, b"b", answers, topic=DEAD) is None
            await settle()
        backend.release_appends()
        await accumulators.drained()
        backend.hold_appends()
        backend.set_leader(TopicPartition(DEAD, 0), -1)


async def test_a_partition_that_stops_answering_stands_before_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a leader, as far as is known, and has filled the buffer before it is noticed."""
    monkeypatch.setattr(silent_partitions, "LOOK_S", 0.001)
    accumulators, backend, answers = await make_two(ProducerConfig(channel_buffer_size=8), leaderless=False)
    late = Answers()
    for number in range(12):
        append(accumulators, b"%d" % number, answers if number < 8 else late, topic=DEAD)
    honest = [append(accumulators, b"honest %d" % number, answers) for number in range(5)]
    assert all(honest)
    await late.wait(4)
    assert {type(error) for *_, error in late.all} == {Unavailable}
    await until(lambda: accumulators.waiting == 1)
    assert accumulators.buffered == 12
    backend.release_appends()
    await accumulators.drained()
    assert flat(await batches_of(backend)) == [b"honest %d" % number for number in range(5)]
    assert accumulators.buffered == accumulators.buffered_bytes == 0


async def test_a_partition_that_fails_again_and_again_is_not_given_the_buffer_between_two_failures() -> None:
    accumulators, backend, answers = await make_two(ProducerConfig(channel_buffer_size=8), leaderless=True)
    backend.release_appends()
    backend.fail_appends(Unavailable("nobody is there"), OUTAGE)
    for _ in range(3):
        for _ in range(4):
            assert append(accumulators, b"x", answers, topic=DEAD) is None
        with pytest.raises(Unavailable, match="dead-0 takes no messages"):
            append(accumulators, b"x", answers, topic=DEAD)
        await accumulators.drained()


@pytest.mark.slow
async def test_counts_are_exact_whatever_becomes_of_the_records() -> None:
    """Random steps: records of both kinds, failures, leaders that go and come back."""
    for seed in range(20):
        rng = Random(seed)
        options = ProducerConfig(
            channel_buffer_size=rng.choice([1, 5, 16]),
            flush_bytes=rng.choice([100, 100_000]),
            retry_backoff=0.001,
            retry_max=60_000,
        )
        backend = FakeBackend()
        await backend.start()
        await backend.create_topic(TOPIC, 3)
        accumulators = Accumulators(
            backend, options, make_partitioner("hash", Random(seed)), FakeClock(), raise_bug
        )
        answers, sent = Answers(), 0
        for _ in range(200):
            match rng.randrange(6):
                case 0:
                    backend.set_leader(TopicPartition(TOPIC, rng.randrange(3)), rng.choice([-1, 1]))
                case 1:
                    backend.hold_appends()
                case 2:
                    backend.release_appends()
                case 3:
                    backend.fail_appends(Unavailable("no leader"), rng.randrange(3))
                case _:
                    try:
                        append(
                            accumulators, b"x" * 30, answers, key=rng.choice([b"a", b"b", b"c", None]),
                            sync=rng.random() < 0.5,
                        )  # fmt: skip
                        sent += 1
                    except Unavailable:
                        pass
            if rng.random() < 0.5:
                await settle()
            assert accumulators.buffered <= 1.5 * options.channel_buffer_size + 1
        backend.heal_appends()
        backend.release_appends()
        async with asyncio.timeout(10):
            await accumulators.drained()
        assert len(answers.all) == sent
        silent = accumulators._silent
        assert (silent.any, silent.records_max, silent.bytes_max) == (
            False,
            options.channel_buffer_size,
            options.buffer_bytes,
        )
        assert silent._total.bytes == 0


def raise_bug(error: BaseException | PixyError) -> None:
    raise AssertionError("a bug") from error
