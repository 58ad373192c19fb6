"""The tail of a log: reads from memory and files when batches and parts of stages alternate."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.storage import StagedPart
from pixy.storage.partition.log_tail import LogTail
from tests.storage.batches import batch


def part(base_offset: int, records: int = 3) -> StagedPart:
    return StagedPart(Path("part"), 100, records).placed(base_offset, 1)


def test_a_read_from_memory_ends_at_a_part_which_is_read_from_files() -> None:
    tail = LogTail()
    tail.append(batch(2), 0)
    tail.append_part(part(2))
    tail.append(batch(1), 5)
    chunk = tail.read(0, 1 << 20, 6)
    assert chunk is not None
    assert (len(chunk.batches), chunk.next_offset) == (1, 2)
    for offset in (2, 3, 4):
        assert tail.read(offset, 1 << 20, 6) is None
    chunk = tail.read(5, 1 << 20, 6)
    assert chunk is not None
    assert (len(chunk.batches), chunk.next_offset) == (1, 6)


def test_unwritten_bytes_are_counted_separately_for_memory_and_parts() -> None:
    tail = LogTail()
    first = batch(1)
    tail.append(first, 0)
    tail.append_part(part(1))
    unwritten = tail.unwritten(4)
    assert (unwritten.memory_bytes, unwritten.staged_bytes, unwritten.end_offset) == (len(first), 100, 4)
    assert unwritten.batches == [first, part(1)]
    tail.append_part(part(4))
    tail.wrote(unwritten)
    assert tail.parts == [part(4)]
    assert tail.unwritten(7) == ([part(4)], 7, 0, 100)


def test_new_parts_neither_disturb_a_reader_nor_copy_the_list() -> None:
    tail = LogTail()
    tail.append_part(part(0))
    seen = tail.parts
    tail.append_part(part(3))
    assert tail.parts is seen, "a publication of many parts would copy them all for each"
    tail.wrote(tail.unwritten(6))
    assert (seen, tail.parts) == ([part(0), part(3)], [])


def test_a_log_of_parts_alone_does_not_accumulate_them() -> None:
    tail = LogTail()
    tail.append(batch(1), 0)
    for number in range(1000):
        tail.append_part(part(1 + 3 * number))
        tail.wrote(tail.unwritten(4 + 3 * number))
    assert len(tail._batches) == len(tail._bases) == 2
    assert tail.read(2000, 1, 3001) is None
    assert tail.evict() > 0
    assert tail.evict() == 0


@pytest.mark.slow
@given(st.lists(st.sampled_from(["batch", "part", "write", "evict"]), max_size=300))
def test_the_tail_matches_a_naive_list(steps: list[str]) -> None:
    tail = LogTail()
    bases: list[tuple[int, bool]] = []
    end = written = evicted = 0
    for step in steps:
        if step == "batch":
            tail.append(batch(1), end)
            bases.append((end, True))
            end += 1
        elif step == "part":
            tail.append_part(part(end))
            bases.append((end, False))
            end += 3
        elif step == "write":
            tail.wrote(tail.unwritten(end))
            written = end
        elif tail.evict():
            evicted = next(base for base, is_batch in bases if is_batch and base >= evicted) + 1
    for base, is_batch in bases:
        chunk = tail.read(base, 0, end)
        in_memory = is_batch and base >= evicted
        assert (chunk is not None) is in_memory, (base, is_batch)
    unwritten = [is_batch for base, is_batch in bases if base >= written]
    found = tail.unwritten(end)
    assert len(found.batches) == len(unwritten)
    assert found.memory_bytes == sum(unwritten) * len(batch(1))
    assert found.staged_bytes == (len(unwritten) - sum(unwritten)) * 100
    assert [each.base_offset for each in tail.parts] == [
        base for base, is_batch in bases if not is_batch and base >= written
    ]
