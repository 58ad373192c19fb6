"""pixy/backend/kafka/merge_batches.py: few batches with the same records."""

from random import Random

import pytest

from pixy.backend.kafka.merge_batches import merge_batches
from pixy.records import (
    COMPRESSION,
    HEADER_BYTES,
    NewRecord,
    build_batch,
    check_batch,
    check_new_batches,
    crc32c,
    read_header,
    read_records,
)
from pixy.records import BatchLimits as Limits
from tests.conformance.support import make_batch

Fields = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


def fields_of(batches: list[bytearray]) -> list[Fields]:
    return [
        (each.key, each.value, list(each.headers), each.timestamp)
        for batch in batches
        for each in read_records(batch)
    ]


def record(rng: Random) -> NewRecord:
    key = rng.choice([None, b"", rng.randbytes(rng.randrange(20))])
    value = rng.choice([None, b"", rng.randbytes(rng.randrange(300)), bytes(rng.randrange(9000))])
    headers = [("näme", rng.choice([None, b"", b"value"])) for _ in range(rng.choice([0, 0, 1, 3]))]
    return NewRecord(key, value, headers, rng.choice([0, 1_700_000_000_000, 1_800_000_000_000, 10**15]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_all_records_are_in_order_in_valid_batches_that_are_small_enough(seed: int) -> None:
    rng = Random(seed)
    batches = [
        build_batch(
            [record(rng) for _ in range(rng.choice([1, 1, 2, 20]))],
            rng.choice(list(COMPRESSION.values())) if seed % 2 else 0,
        )
        for _ in range(200)
    ]
    limit = rng.choice([10_000, 100_000])
    batches = [batch for batch in batches if len(batch) <= limit]
    merged = merge_batches([bytearray(batch) for batch in batches], limit)
    assert fields_of(merged) == fields_of(batches)
    assert len(merged) < len(batches)
    for batch in merged:
        check_new_batches(batch, Limits(limit))
        assert len(batch) <= limit
    if not seed % 2:
        assert sum(map(len, merged)) > len(merged) * limit / 4


def test_many_batches_of_one_small_record_become_one() -> None:
    batches = [make_batch(b"%d" % number, timestamp_ms=number) for number in range(2000)]
    (merged,) = merge_batches(batches, 256 << 10)
    assert fields_of([merged]) == fields_of(batches)
    assert read_header(merged).max_timestamp == 1999


def test_what_cannot_be_rebuilt_stays_as_it_is_between_the_others() -> None:
    """A record without a timestamp, and one that decompresses to more than the limit."""
    plain = [make_batch(b"%d" % number) for number in range(6)]
    bomb = build_batch([NewRecord(None, bytes(100_000), (), 1000)], COMPRESSION["zstd"])
    no_time = make_batch(b"no time", timestamp_ms=0)
    stamped = bytearray(no_time)
    stamped[27:43] = (-1).to_bytes(8, "big", signed=True) * 2
    stamped[17:21] = _crc(stamped)
    check_batch(stamped)
    given = [*plain[:2], bomb, *plain[2:4], stamped, *plain[4:]]
    merged = merge_batches(given, 10_000)
    assert fields_of(merged) == fields_of(given)
    assert merged[1::2] == [bomb, stamped]
    assert [read_header(batch).records for batch in merged[::2]] == [2, 2, 2]


def test_a_batch_alone_is_not_rebuilt() -> None:
    batch = make_batch(b"1", b"2")
    (merged,) = merge_batches([batch], 10_000)
    assert merged is batch
    assert merge_batches([], 10_000) == []
    assert merge_batches([batch, batch], HEADER_BYTES) == [batch, batch]


def _crc(batch: bytearray) -> bytes:
    return crc32c(batch[21:]).to_bytes(4, "big")
