"""Units of records, the facts that a driver needs, and files of older versions."""

import asyncio
import struct
from pathlib import Path
from random import Random

import pytest

from pixy.storage import RecordKind, UnitRecord, recover_journal
from pixy.storage.journal import journal as journal_module
from pixy.storage.journal import journal_path
from pixy.storage.journal.gathered_units import GatheredUnits
from tests.fakes.disk import RecordingDisk
from tests.storage.journal_bench import ENTRY, HEAD, Bench, original, written
from tests.storage.journals import OWNER, content, entry, hard_state, journal_file, record, write_files


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def small_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes that take no further unit from 400 bytes on."""
    monkeypatch.setattr(journal_module, "_FLUSH_BYTES_MAX", 400)


# --- units ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_flushes")
@pytest.mark.parametrize("sizes", [[100] * 10, [1000], [1000, 1000], [10, 1000, 10], [300, 10, 10, 364, 500]])
async def test_a_flush_takes_no_further_unit_once_it_is_large(tmp_path: Path, sizes: list[int]) -> None:
    bench = Bench(tmp_path, file_bytes=100_000)
    for size in sizes:
        bench.append(b"x" * size)
    await bench.flush()
    await bench.journal.stop()
    assert [token for tokens in bench.durable for token in tokens] == list(range(1, len(sizes) + 1))
    for tokens in bench.durable:
        assert sum(HEAD + sizes[token - 1] for token in tokens[:-1]) < 400
    for tokens in bench.durable[:-1]:
        assert sum(HEAD + sizes[token - 1] for token in tokens) >= 400
    recovered = bench.recover()
    assert [len(each[2]) for each in content(recovered)] == sizes
    assert recovered.files == bench.journal.files


@pytest.mark.usefixtures("small_flushes")
async def test_the_records_of_a_unit_are_in_one_flush_however_large_they_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=1000)
    bench.append_unit(original(1, b"x" * 300), original(2, b"x" * 300))
    bench.append_unit(original(3, b"x" * 600), original(4, b"x" * 600), original(5, b"y"))
    bench.append_unit(original(6, b"z"))
    await bench.flush()
    await bench.journal.stop()
    assert bench.durable == [[1], [2], [3]]
    assert bench.disk.durable_writes[:2] == [(64, 1000), (64, 64 + 40 + 3 * HEAD + 1201)]
    assert [index for _, index, _ in content(bench.recover())] == [1, 2, 3, 4, 5, 6]
    assert bench.recover().files == bench.journal.files


async def test_a_unit_has_the_bytes_of_its_records_and_one_token(bench: Bench) -> None:
    proposed: UnitRecord = (ENTRY, 2, 1000, 7, 3, 5, (1, 2, 3), b"command")
    state: UnitRecord = (RecordKind.HARD_STATE, 0, 1000, 0, 3, 0, None, b"")
    bench.append_unit(proposed, state)
    bench.append_unit(proposed)
    bench.append_unit(original(7, b"payload"))
    await bench.flush()
    await bench.journal.stop()
    entry_7 = record(1, 2, 1000, 7, 3, b"command", commit=5, proposal=(1, 2, 3))
    records = [entry_7, record(2, 0, 1000, 0, 3), entry_7, entry(7)]
    assert journal_path(bench.directory, 1).read_bytes() == journal_file([records], size=4096)
    assert bench.durable == [[1, 2, 3]]


async def test_a_single_record_is_gathered_like_one_of_several(bench: Bench) -> None:
    """The path of single records has code of its own, for speed."""
    rng, expected = Random(1), GatheredUnits()
    for _ in range(300):
        proposal = rng.choice([None, (rng.getrandbits(32), rng.getrandbits(32), rng.getrandbits(64))])
        group, index = rng.randint(1, 5), rng.randint(1, 9)
        term, commit = rng.getrandbits(64), rng.getrandbits(64)
        kind, entry_type = rng.randint(1, 7), rng.randint(0, 5)
        payload = rng.randbytes(rng.randint(0, 20))
        record: UnitRecord = (kind, entry_type, group, index, term, commit, proposal, payload)
        bench.append_unit(record)
        expected.add([record])
        expected.tokens.append(len(expected.tokens) + 1)
    found = bench.journal._gathered
    assert (found.buffers, found.tokens, found.bytes) == (expected.buffers, expected.tokens, expected.bytes)
    assert (found.lowest, found.highest) == (expected.lowest, expected.highest)
    bench.journal.abandon()


async def test_units_of_many_records_are_acknowledged_in_order_by_their_bytes(bench: Bench) -> None:
    large = bytes(20 << 10)
    bench.append_unit(*[original(index) for index in range(1, 101)])
    bench.append_unit(original(101, large), original(102, large), original(103, large), original(104, large))
    bench.append_unit()
    bench.append_unit(original(105, large))
    bench.append_unit(original(106, large))
    await bench.worker.wait()
    bench.worker.step()
    assert bench.durable == [[1, 2]]
    await bench.journal.drained()
    assert bench.durable == [[1, 2], [3, 4, 5]]
    await bench.journal.stop()
    assert len(content(bench.recover())) == 106


async def test_a_unit_without_records_is_acknowledged_after_everything_before_it(bench: Bench) -> None:
    bench.append()
    await asyncio.sleep(0)
    bench.append_unit()
    await asyncio.sleep(0)
    assert (bench.durable, len(bench.worker)) == ([], 1)
    await bench.flush()
    assert bench.durable == [[1], [2]]
    calls = len(bench.disk.calls)
    bench.append_unit()
    bench.append_unit()
    await asyncio.sleep(0)
    assert (bench.durable, len(bench.disk.calls)) == ([[1], [2], [3, 4]], calls)
    assert bench.journal.flush_number == 1
    await bench.journal.drained()
    bench.append_unit()
    bench.append()
    await bench.drain()
    assert bench.durable[3:] == [[5, 6]]
    await bench.journal.stop()
    assert len(bench.recover().files) == 1


async def test_units_without_records_are_acknowledged_behind_a_flush_that_is_being_acknowledged(
    bench: Bench,
) -> None:
    await written(bench, 150)
    bench.append_unit()
    await bench.drain()
    assert [token for piece in bench.durable for token in piece] == list(range(1, 152))
    assert bench.durable[-1] == [151]
    await bench.journal.stop()


@pytest.mark.parametrize("count", [1, 3])
async def test_of_a_unit_that_cannot_be_encoded_nothing_is_written(bench: Bench, count: int) -> None:
    wrong: UnitRecord = (ENTRY, 1, -1, 1, 1, 0, None, b"")
    with pytest.raises(struct.error):
        bench.append_unit(*[original(1)] * (count - 1), wrong)
    bench.append(b"one")
    await bench.flush()
    await bench.journal.stop()
    assert content(bench.recover()) == [(1000, 1, b"one")]
    assert bench.journal.files == bench.recover().files


# --- facts for a driver ---------------------------------------------------------------------------


async def test_the_flush_number_is_that_of_the_newest_durable_flush(bench: Bench) -> None:
    assert bench.journal.flush_number == 0
    for number in (1, 2):
        bench.append()
        await asyncio.sleep(0)
        assert bench.journal.flush_number == number - 1
        await bench.flush()
        assert bench.journal.flush_number == number
    await bench.journal.stop()
    found = bench.recover()
    again = Bench(bench.directory, at=found.at, files=found.files)
    assert again.journal.flush_number == 2
    again.journal.abandon()


@pytest.mark.usefixtures("small_flushes")
async def test_the_age_of_the_oldest_unit_that_is_not_durable_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    times = iter((1.0, 2.0, 3.0))
    ages: list[float | None] = [bench.journal.oldest_unsynced_at]
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "time", lambda: next(times))
        for _ in range(3):
            bench.append(bytes(400))
            ages.append(bench.journal.oldest_unsynced_at)
    await bench.worker.wait()
    for _ in range(3):
        ages.append(bench.journal.oldest_unsynced_at)
        bench.worker.step()
        await asyncio.sleep(0)
    assert ages == [None, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0]
    assert bench.journal.oldest_unsynced_at is None
    await bench.journal.stop()


# --- files of version 1 ---------------------------------------------------------------------------

OLD_ENTRIES = [[entry(1, b"one", version=1), hard_state(version=1)], [entry(2, b"two", version=1)]]


async def test_a_journal_whose_newest_file_is_of_an_older_version_continues_with_a_new_file(
    tmp_path: Path,
) -> None:
    old = journal_file(OLD_ENTRIES, size=4096, version=1)
    write_files(tmp_path, old)
    found = recover_journal(RecordingDisk(), tmp_path, OWNER)
    assert [file.version for file in found.files] == [1]
    bench = Bench(tmp_path, at=found.at, files=found.files)
    bench.append_unit(original(3, b"three"))
    await bench.flush()
    bench.append_unit(original(4, b"four"))
    await bench.flush()
    await bench.journal.stop()
    assert journal_path(tmp_path, 1).read_bytes() == old
    flushes = [[entry(3, b"three")], [entry(4, b"four")]]
    new = journal_file(flushes, file=2, first_flush=3, size=4096)
    assert journal_path(tmp_path, 2).read_bytes() == new
    journal = bench.recover()
    assert [payload for _, _, payload in content(journal)] == [b"one", b"two", b"three", b"four"]
    assert [each.version for each in journal.groups[1000].entries] == [1, 1, 2, 2]
    assert journal.files == bench.journal.files


async def test_a_file_of_an_older_version_without_a_flush_becomes_one_of_the_newest(tmp_path: Path) -> None:
    first = journal_file(OLD_ENTRIES, version=1)
    write_files(tmp_path, first, journal_file([], file=2, size=4096, version=1))
    disk = RecordingDisk()
    found = recover_journal(disk, tmp_path, OWNER)
    assert [call.what for call in disk.calls] == ["write", "sync", "sync_directory"]
    bench = Bench(tmp_path, at=found.at, files=found.files)
    bench.append_unit(original(3, b"three"))
    await bench.flush()
    await bench.journal.stop()
    new = journal_file([[entry(3, b"three")]], file=2, first_flush=3, size=4096)
    assert journal_path(tmp_path, 2).read_bytes() == new
    # Once the first file is gone, a second one without a flush would be refused.
    journal_path(tmp_path, 1).unlink()
    assert content(bench.recover()) == [(1000, 3, b"three")]
