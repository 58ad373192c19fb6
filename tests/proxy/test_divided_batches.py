"""pixy/proxy/divided_batches.py: the cluster refuses a batch because of some of its records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from random import Random

import pytest

from pixy.backend import TopicPartition
from pixy.config import ProducerConfig
from pixy.errors import InvalidArgument, MessageTooLarge, PixyError, Unavailable
from pixy.proxy.accumulator import Accumulators
from pixy.proxy.topic_accumulators import RECORD_OVERHEAD_BYTES
from pixy.records import Record, build_batch
from tests.fakes.backend import FakeBackend
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle, until
from tests.proxy.producing import TOPIC, Answers, append, batches, flat, make

OPTIONS = ProducerConfig(timeout=10.0, retry_backoff=0.01, retry_max=6000)
NAMED = pytest.mark.parametrize("named", [True, False], ids=["named", "halved"])


def refuse_bad(records: Sequence[Record]) -> Mapping[int, PixyError]:
    """Values that begin with "bad" are at fault."""
    return {
        number: InvalidArgument(f"{record.value!r} is refused")
        for number, record in enumerate(records)
        if (record.value or b"").startswith(b"bad")
    }


async def make_refusing(
    *, named: bool, options: ProducerConfig = OPTIONS
) -> tuple[Accumulators, FakeBackend, Answers]:
    accumulators, backend, answers = await make(options)
    backend.refuse_records(refuse_bad, named=named)
    return accumulators, backend, answers


def outcomes(answers: Answers) -> list[int | str]:
    """Offsets and errors, in the order of the answers."""
    return [offset if error is None else str(error) for _, offset, error in answers.all]


@NAMED
@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_all_others_are_written_once_in_their_order(named: bool, compression: str) -> None:
    accumulators, backend, _ = await make_refusing(
        named=named, options=replace(OPTIONS, compression=compression)
    )
    values = [b"bad %d" % number if number % 13 == 5 else b"%d" % number for number in range(40)]
    answers = [Answers() for _ in values]
    for value, answer in zip(values, answers, strict=True):
        append(accumulators, value, answer)
    await accumulators.drained()
    good = [value for value in values if not value.startswith(b"bad")]
    assert flat(await batches(backend)) == good
    assert [outcomes(answer) for answer in answers] == [
        [good.index(value) if value in good else f"{value!r} is refused"] for value in values
    ]
    assert accumulators.buffered == accumulators.buffered_bytes == accumulators.lost == 0
    assert accumulators.produced.by_topic[TOPIC] == [len(good), sum(1 + len(value) for value in good)]


@NAMED
async def test_asynchronous_ones_of_others_are_written(named: bool) -> None:
    accumulators, backend, answers = await make_refusing(named=named)
    for number in range(9):
        append(accumulators, b"%d" % number, Answers(), sync=False)
    append(accumulators, b"bad", answers)
    append(accumulators, b"bad, and nobody waits", Answers(), sync=False)
    append(accumulators, b"9", Answers(), sync=False)
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"%d" % number for number in range(10)]
    assert outcomes(answers) == ["b'bad' is refused"]
    assert accumulators.lost == 1


async def test_a_batch_of_refused_records_alone_is_answered() -> None:
    accumulators, backend, answers = await make_refusing(named=True)
    for value in (b"bad 1", b"bad 2", b"bad 1"):
        append(accumulators, value, answers)
    await accumulators.drained()
    append(accumulators, b"next", answers)
    await accumulators.drained()
    assert sorted(map(str, outcomes(answers))) == [
        "0",
        *[f"b'bad {number}' is refused" for number in (1, 1, 2)],
    ]
    assert flat(await batches(backend)) == [b"next"]


async def test_the_requests_are_few() -> None:
    accumulators, backend, answers = await make_refusing(named=False)
    count = 1024
    for number in range(count):
        append(accumulators, b"bad" if number == 700 else b"%d" % number, answers)
    await accumulators.drained()
    assert len(backend.ages) == 1 + 2 * log2(count)
    assert len(flat(await batches(backend))) == count - 1


async def test_a_batch_that_is_too_large_is_written_in_parts() -> None:
    accumulators, backend, answers = await make(OPTIONS)
    backend.refuse_records(
        lambda records: {0: MessageTooLarge("too large")} if len(records) > 3 else {}, named=False
    )
    for number in range(16):
        append(accumulators, b"%d" % number, answers)
    await accumulators.drained()
    assert flat(await batches(backend)) == [b"%d" % number for number in range(16)]
    assert sorted(map(str, outcomes(answers))) == sorted(map(str, range(16)))


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_messages_that_are_too_large_for_the_topic_are_told_apart_by_their_size(
    compression: str,
) -> None:
    """One batch is refused; by then the limit is known."""
    accumulators, backend, _ = await make(replace(OPTIONS, compression=compression))
    backend.bytes_max = 500
    rng, good, answers = Random(1), [], {}
    for _ in range(3):
        for number in range(300):
            value = rng.randbytes(4) + rng.randbytes(rng.choice([10, 600]))
            answers[value] = Answers()
            append(accumulators, value, answers[value], sync=number % 3 > 0)
            if len(value) < 500:
                good.append(value)
        await accumulators.drained()
    assert flat(await batches(backend)) == good
    assert backend.refused_as_large == 1
    largest = sum(len(value) + RECORD_OVERHEAD_BYTES + 1 for value in good) / 400
    assert len(backend.ages) < 1.5 * largest
    for value, answer in answers.items():
        (_, _, error), *_ = answer.all
        assert isinstance(error, MessageTooLarge | None)
        assert error is None or len(value) > 500
    assert accumulators.lost == sum(
        len(value) > 500 and number % 3 == 0 for number, value in enumerate(answers)
    )
    assert accumulators.buffered == accumulators.buffered_bytes == 0


async def test_the_size_of_a_message_that_just_fits_is_exact() -> None:
    accumulators, backend, answers = await make(OPTIONS)
    small = [bytes([number]) * 50 for number in range(10)]
    fits = b"f" * 1000
    backend.bytes_max = len(build_batch([(b"k", fits, (), FakeClock().wall_ms())]))
    for value in (*small, fits, b"t" * 1001, *small, fits):
        append(accumulators, value, answers)
    await accumulators.drained()
    assert flat(await batches(backend)) == [*small, fits, *small, fits]
    assert [type(error) for _, _, error in answers.all if error] == [MessageTooLarge]
    assert f"{backend.bytes_max} bytes at most" in next(str(error) for _, _, error in answers.all if error)


@pytest.mark.slow
@pytest.mark.parametrize("outage", [1, 2, 3, 5, 8])
@NAMED
async def test_what_is_kept_of_a_divided_batch_stays_in_order(outage: int, named: bool) -> None:
    """An outage begins after any number of requests, and another one as soon after its end: what
    was divided and failed is kept before the batches behind it.
    """
    accumulators, backend, _ = await make(replace(OPTIONS, flush_bytes=300))
    log = backend._logs[TopicPartition(TOPIC, 0)]
    requests = 0

    async def tried_again() -> None:
        attempts = len(backend.ages) + 2
        await until(lambda: len(backend.ages) > attempts or not accumulators.buffered)

    def refuse(records: Sequence[Record]) -> Mapping[int, PixyError]:
        nonlocal requests
        requests += 1
        if requests in {outage, 2 * outage}:
            log.refusal = Unavailable("no leader")
        return refuse_bad(records)

    backend.refuse_records(refuse, named=named)
    bad = {1, 4, 17}
    append(accumulators, b"first", Answers(), sync=False)
    await settle()
    backend.hold_appends()
    for number in range(30):
        append(accumulators, b"bad" if number in bad else b"%d" % number, Answers(), sync=False)
    backend.release_appends()
    while accumulators.buffered:
        await until(lambda: log.refusal is not None or not accumulators.buffered)
        await tried_again()
        log.refusal = None
    assert flat(await batches(backend)) == [
        b"first",
        *[b"%d" % number for number in range(30) if number not in bad],
    ]
    assert accumulators.lost == len(bad)
    assert accumulators.buffered_bytes == 0
