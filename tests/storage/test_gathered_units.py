"""Units of records on their way into one flush."""

import struct
from random import Random

import pytest

from pixy.storage import RecordKind, UnitRecord
from pixy.storage.journal.gathered_units import GatheredUnits
from pixy.storage.journal.journal_format import record_head


def entry(index: int, size: int = 10, raft_group: int = 1000) -> UnitRecord:
    return RecordKind.ENTRY, 1, raft_group, index, 1, 0, None, bytes(size)


def gathered(*units: list[UnitRecord]) -> GatheredUnits:
    flush = GatheredUnits()
    for number, records in enumerate(units):
        flush.add(records)
        flush.tokens.append(number)
    return flush


def pieces(flush: GatheredUnits) -> list[list[int]]:
    told = []
    while flush.told < len(flush.tokens):
        told.append(flush.next_tokens())
    return told


def test_the_buffers_are_heads_and_payloads_in_order() -> None:
    records = [entry(1), entry(2, 0), (RecordKind.HARD_STATE, 0, 1000, 0, 4, 0, None, b"state")]
    flush = gathered(records[:2], [], records[2:])
    assert flush.buffers == [each for record in records for each in (record_head(record), record[-1])]
    assert (flush.bytes, flush.counts) == (sum(map(len, flush.buffers)), {0: 2, 1: 0, 2: 1})


def test_the_indexes_of_entries_are_noted_by_raft_group() -> None:
    copy = (RecordKind.RELOCATED_ENTRY, 1, 1001, 9, 1, 0, None, b"")
    state = (RecordKind.HARD_STATE, 0, 1002, 5, 1, 0, None, b"")
    flush = gathered([entry(5), copy, entry(3)], [entry(4), state, entry(7)])
    assert (flush.lowest, flush.highest) == ({1000: 3, 1001: 9}, {1000: 7, 1001: 9})


@pytest.mark.parametrize("wrong", [-1, 2**64])
def test_of_a_unit_that_cannot_be_encoded_nothing_is_added(wrong: int) -> None:
    flush = gathered([entry(1)])
    before = (list(flush.buffers), flush.bytes, dict(flush.counts), dict(flush.highest))
    with pytest.raises(struct.error):
        flush.add([entry(2), entry(wrong)])
    assert (flush.buffers, flush.bytes, flush.counts, flush.highest) == before


def test_pieces_have_few_units_and_few_bytes_but_at_least_one() -> None:
    small = gathered(*[[entry(index)] for index in range(1, 131)])
    small.counts.clear()  # as for single records, which are not counted
    assert list(map(len, pieces(small))) == [64, 64, 2]
    large = [[entry(1, 30 << 10)], [entry(2, 40 << 10)], [entry(3, 100 << 10)], [], [entry(4)], []]
    assert pieces(gathered(*large)) == [[0, 1], [2], [3, 4, 5]]
    assert pieces(gathered([entry(index, 1 << 10) for index in range(1, 70)], [], [entry(70)])) == [
        [0],
        [1, 2],
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_are_all_units_in_order_within_the_limits(seed: int) -> None:
    rng = Random(seed)
    sizes = [
        [rng.choice([0, 100, 20_000, 70_000]) for _ in range(rng.choice([0, 1, 1, 1, 5]))] for _ in range(200)
    ]
    told = pieces(gathered(*[[entry(1, size) for size in unit] for unit in sizes]))
    assert [unit for piece in told for unit in piece] == list(range(200))
    for piece in told:
        assert len(piece) <= 64
        assert sum(sum(sizes[unit]) for unit in piece[:-1]) < 64 << 10
