"""The journal: group commit, the order that recovery relies on, faults, a full disk, rotation."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pixy.errors import Unavailable
from pixy.storage import (
    File,
    Journal,
    JournalFile,
    JournalOptions,
    RecordKind,
    RecoveredJournal,
    UnitRecord,
    recover_journal,
)
from pixy.storage.disk.disk import Buffer, RealDisk
from pixy.storage.disk.worker import Done, ThreadWorker
from pixy.storage.journal import journal as journal_module
from pixy.storage.journal import journal_path
from tests.fakes.disk import RecordingDisk, full
from tests.fakes.worker import StepWorker
from tests.storage.journal_bench import ENTRY, FLUSH_OF_ONE, HEAD, Bench, original, written
from tests.storage.journals import OWNER, content, entry, journal_file, write_files


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class RingWorker(StepWorker):
    """Takes writes without its thread; each is done by a step."""

    def __init__(self, error: OSError | None = None) -> None:
        super().__init__()
        self._error = error
        self.begun: list[int] = []

    def begin_write(self, file: File, buffers: Sequence[Buffer], position: int, done: Done) -> bool:
        def write() -> None:
            if self._error is not None:
                raise self._error
            file.write_durably(buffers, position)

        self.begun.append(position)
        self.submit(write, done)
        return True


# --- group commit ---------------------------------------------------------------------------------


async def test_entries_appended_in_one_turn_of_the_loop_share_a_flush(bench: Bench) -> None:
    for group in range(5):
        bench.append(raft_group=1000 + group)
    assert bench.durable == []
    await bench.flush()
    assert bench.durable == [[1, 2, 3, 4, 5]]
    assert len(bench.disk.did("write", ".journal")) == 2  # the file's header, and the flush
    await bench.journal.stop()


async def test_entries_appended_during_a_flush_share_the_next_one(bench: Bench) -> None:
    bench.append()
    await asyncio.sleep(0)
    for _ in range(3):
        bench.append()
        await asyncio.sleep(0)
    assert len(bench.worker) == 1
    syncs = len(bench.disk.did("sync"))
    await bench.flush()
    assert bench.durable == [[1], [2, 3, 4]]
    assert len(bench.disk.did("sync")) - syncs == 3  # of the new file, and of each flush
    await bench.journal.stop()


async def test_each_flush_is_timed(bench: Bench) -> None:
    for count in (1, 2):
        bench.append()
        await bench.flush()
        assert sum(bench.journal.sync_s.counts) == count
    assert 0 < bench.journal.sync_s.sum < 10
    await bench.journal.stop()


async def test_one_sync_serves_all_waiting_groups(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=1 << 20)
    bench.append()
    await bench.flush()
    before = len(bench.disk.did("sync"))
    for group in range(500):
        bench.append(raft_group=group)
    await bench.drain()
    assert len(bench.disk.did("sync")) == before + 1
    assert sum(map(len, bench.durable)) == 501
    await bench.journal.stop()


async def test_a_passenger_rides_with_flushes_and_causes_none(bench: Bench) -> None:
    peers: list[UnitRecord] = [(RecordKind.PEER_STARTS, 0, 0, 0, 0, 0, None, b"")]
    asked: list[int] = []

    def passenger() -> tuple[list[UnitRecord], str] | None:
        asked.append(bench.journal.flush_number)
        return (peers, "passenger") if len(asked) == 2 else None

    bench.journal.passenger = passenger
    bench.append()
    await bench.flush()
    bench.append_unit()
    await bench.flush()
    assert asked == [0], "a unit without records needs no flush"
    bench.append()
    bench.append()
    await bench.drain()
    bench.append()
    await bench.drain()
    assert (bench.durable, asked) == ([[1], [2], [3, 4, "passenger"], [5]], [0, 1, 2])
    await bench.journal.stop()
    recovered = bench.recover()
    assert (recovered.at.flush_number, recovered.peer_starts_file) == (4, 1)


# --- telling --------------------------------------------------------------------------------------


async def test_a_flush_of_many_records_is_acknowledged_in_order_a_piece_per_iteration(bench: Bench) -> None:
    await written(bench, 150)
    assert list(map(len, bench.durable)) == [64]
    await asyncio.sleep(0)
    assert list(map(len, bench.durable)) == [64, 64]
    await bench.journal.drained()
    assert list(map(len, bench.durable)) == [64, 64, 22]
    assert [token for piece in bench.durable for token in piece] == list(range(1, 151))
    await bench.journal.stop()


async def test_large_records_are_acknowledged_one_per_iteration(bench: Bench) -> None:
    await written(bench, 3, bytes(64 << 10))
    await bench.journal.drained()
    assert bench.durable == [[1], [2], [3]]
    await bench.journal.stop()


async def test_the_next_flush_is_written_while_one_is_acknowledged_and_acknowledged_after_it(
    bench: Bench,
) -> None:
    for _ in range(150):
        bench.append()
    await bench.worker.wait()
    bench.append()
    bench.worker.step()
    assert (bench.durable, len(bench.worker)) == ([list(range(1, 65))], 1)
    bench.append()
    bench.worker.step()
    assert len(bench.durable) == 1, "the flush before is not told yet"
    bench.append()
    await asyncio.sleep(0)
    assert not bench.worker, "a third flush would make what is to be told grow without bound"
    await bench.drain()
    assert [token for piece in bench.durable for token in piece] == list(range(1, 154))
    assert bench.durable[-2:] == [[151], [152, 153]]
    await bench.journal.stop()


async def test_the_callback_sees_the_file_of_its_record_even_if_the_next_flush_is_in_another(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, file_bytes=64 + 40 + 150 * (HEAD + len(b"payload")))
    newest: list[int] = []
    bench.journal._on_durable = lambda tokens: newest.extend(bench.journal.files[-1].number for _ in tokens)
    for _ in range(150):
        bench.append()
    await bench.worker.wait()
    bench.append()
    bench.worker.step()
    bench.worker.step()
    await bench.drain()
    assert newest == [1] * 150 + [2]
    await bench.journal.stop()


async def test_drained_waits_until_everything_is_acknowledged(bench: Bench) -> None:
    await written(bench, 150)
    await bench.drain()
    assert sum(map(len, bench.durable)) == 150
    await bench.journal.stop()


async def test_a_full_disk_does_not_delay_acknowledging_the_previous_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_FULL_DISK_RETRY_S", 1000.0)
    bench = Bench(tmp_path, file_bytes=64 + 40 + 150 * (HEAD + len(b"payload")))
    for _ in range(150):
        bench.append()
    await bench.worker.wait()
    bench.append()
    bench.worker.step()
    full(bench.disk, "create", ".journal")
    bench.worker.step()
    assert bench.journal.blocked is not None
    await bench.journal.drained()
    assert sum(map(len, bench.durable)) == 150
    await bench.journal.stop()


async def test_nothing_is_acknowledged_after_a_fault(bench: Bench) -> None:
    await written(bench, 150)
    bench.journal.give_up()
    await asyncio.sleep(0)
    assert list(map(len, bench.durable)) == [64]
    bench.journal.abandon()


async def test_the_file_has_the_bytes_of_the_format_and_is_recovered(bench: Bench) -> None:
    bench.append(b"one")
    bench.append(b"two")
    await bench.flush()
    bench.append(b"three")
    await bench.flush()
    await bench.journal.stop()
    expected = journal_file([[entry(1, b"one"), entry(2, b"two")], [entry(3, b"three")]], size=4096)
    assert journal_path(bench.directory, 1).read_bytes() == expected
    recovered = bench.recover()
    assert content(recovered) == [(1000, 1, b"one"), (1000, 2, b"two"), (1000, 3, b"three")]
    assert (
        recovered.files
        == bench.journal.files
        == [JournalFile(1, 2, recovered.at.position, {1000: (1, 3, 64)})]
    )


async def test_a_journal_continues_where_recovery_found_the_end(bench: Bench) -> None:
    bench.append(b"one")
    await bench.flush()
    await bench.journal.stop()
    found = bench.recover()
    again = Bench(bench.directory, at=found.at, files=found.files)
    again.journal.append([original(2, b"two")], 2)
    await again.flush()
    await again.journal.stop()
    assert content(again.recover()) == [(1000, 1, b"one"), (1000, 2, b"two")]
    assert len(again.recover().files) == 1


# --- order ----------------------------------------------------------------------------------------


async def test_a_flush_is_written_only_after_the_previous_one_was_synced(bench: Bench) -> None:
    for _ in range(4):
        bench.append()
        await asyncio.sleep(0)
        bench.append()
        await bench.flush()
    await bench.journal.stop()
    calls = bench.what("write", "sync")
    assert calls == ["write", "sync"] * (len(calls) // 2)


async def test_a_file_is_created_whole_and_durable_before_its_first_flush(bench: Bench) -> None:
    bench.append()
    await bench.flush()
    await bench.journal.stop()
    assert [call.what for call in bench.disk.calls] == [
        "create",
        "allocate",
        "write",
        "sync",
        "sync_directory",
        "write",
        "sync",
    ]


async def test_a_file_is_synced_before_its_successor_is_created(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=64 + 2 * (FLUSH_OF_ONE + 7))
    for _ in range(5):
        bench.append()
        await bench.flush()
    await bench.journal.stop()
    last_write: dict[str, str] = {}
    for call in bench.disk.calls:
        if call.what in ("write", "sync"):
            last_write[call.name] = call.what
        if call.what == "create":
            assert set(last_write.values()) <= {"sync"}
    assert [call.name for call in bench.disk.did("create")] == [
        journal_path(tmp_path, n).name for n in (1, 2, 3)
    ]
    spans = [{1000: (1, 2, 64)}, {1000: (3, 4, 64)}, {1000: (5, 5, 64)}]
    assert [each.spans for each in bench.journal.files] == spans
    assert bench.recover().files == bench.journal.files


async def test_forgotten_files_are_removed_durably_one_by_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=64 + FLUSH_OF_ONE + 7)
    for _ in range(3):
        bench.append()
        await bench.flush()
    bench.journal.forget(bench.journal.files[:2])
    await bench.flush()
    assert [(call.what, call.name) for call in bench.disk.calls[-4:]] == [
        ("unlink", journal_path(tmp_path, 1).name),
        ("sync_directory", tmp_path.name),
        ("unlink", journal_path(tmp_path, 2).name),
        ("sync_directory", tmp_path.name),
    ]
    await bench.journal.stop()
    assert content(bench.recover()) == [(1000, 3, b"payload")]


async def test_only_the_oldest_files_may_be_removed_and_never_the_newest(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=64 + FLUSH_OF_ONE + 7)
    for _ in range(2):
        bench.append()
        await bench.flush()
    for wrong in (bench.journal.files[1:], bench.journal.files[:]):
        with pytest.raises(AssertionError):
            bench.journal.forget(wrong)
    await bench.journal.stop()


async def test_a_file_is_kept_for_relocated_and_for_replaced_entries(bench: Bench) -> None:
    copy = RecordKind.RELOCATED_ENTRY
    flushes = [[(ENTRY, 1000, 1), (ENTRY, 1000, 2), (ENTRY, 1000, 3)]]
    flushes += [[(ENTRY, 1000, 2)], [(copy, 1000, 1), (copy, 1001, 7), (RecordKind.HARD_STATE, 1002, 9)]]
    for records in flushes:
        for kind, group, index in records:
            bench.append_unit(original(index, b"", group, kind))
        await bench.flush()
    await bench.journal.stop()
    third = 64 + 2 * 40 + 4 * HEAD
    expected = JournalFile(1, 2, third + 40 + 3 * HEAD, {1000: (1, 3, 64), 1001: (7, 7, third)})
    assert bench.journal.files == bench.recover().files == [expected]


async def test_the_spans_of_the_writer_are_those_of_the_next_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=2000)
    rng = Random(1)
    for _ in range(40):
        for _ in range(rng.randint(1, 4)):
            first, group = rng.randint(1, 20), 1000 + rng.randint(0, 2)
            copies = [
                original(first + at, bytes(rng.randint(0, 90)), group, RecordKind.RELOCATED_ENTRY)
                for at in range(rng.randint(0, 3))
            ]
            rng.shuffle(copies)
            bench.append_unit(*copies)
        await bench.flush()
    await bench.journal.stop()
    assert len(bench.journal.files) > 5
    assert bench.journal.files == bench.recover().files


# --- rotation -------------------------------------------------------------------------------------


async def test_entries_larger_than_a_file_get_files_of_their_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=1000)
    payloads = [b"small", b"L" * 5000, b"small", b"M" * 3000, b"N" * 936]
    for payload in payloads:
        bench.append(payload)
        await bench.flush()
    await bench.journal.stop()
    assert [each[2] for each in content(bench.recover())] == payloads
    assert [journal_path(tmp_path, number).stat().st_size for number in range(1, 6)] == [
        1000,
        5164,
        1000,
        3164,
        1100,
    ]


async def test_a_file_that_recovery_found_without_a_flush_grows_to_hold_its_first(tmp_path: Path) -> None:
    write_files(tmp_path, journal_file([[entry(1)]]), journal_file([], file=2, size=100))
    found = recover_journal(RecordingDisk(), tmp_path, OWNER)
    bench = Bench(tmp_path, at=found.at, files=found.files)
    bench.append(b"x" * 500)
    await bench.flush()
    await bench.journal.stop()
    assert len(bench.recover().files) == 2
    assert bench.disk.did("allocate")[0].at == 64 + FLUSH_OF_ONE + 500


async def test_a_file_is_full_when_the_bytes_allocated_for_it_are_used(tmp_path: Path) -> None:
    # The option was smaller when the file was created: there may be no room past its end, and a
    # write must not fail.
    write_files(tmp_path, journal_file([[entry(1)]], size=300))
    found = recover_journal(RecordingDisk(), tmp_path, OWNER)
    bench = Bench(tmp_path, file_bytes=10_000, at=found.at, files=found.files)
    bench.append(b"x" * 500)
    await bench.flush()
    await bench.journal.stop()
    assert [journal_path(tmp_path, number).stat().st_size for number in (1, 2)] == [300, 10_000]


# --- waiting for everything -----------------------------------------------------------------------


async def test_drained_waits_for_entries_appended_when_the_last_flush_became_durable(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    drained = asyncio.create_task(bench.journal.drained())
    await drained  # nothing to wait for

    def durable(tokens: list[Any]) -> None:
        bench.durable.append(tokens)
        if tokens == [1]:
            bench.append()

    bench.journal._on_durable = durable
    bench.append()
    drained = asyncio.create_task(bench.journal.drained())
    await asyncio.sleep(0)
    bench.worker.step()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not drained.done()
    await bench.flush()
    await drained
    assert bench.durable == [[1], [2]]
    await bench.journal.stop()


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["write", "sync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
async def test_a_failed_write_or_sync_is_never_retried_and_nothing_outstanding_is_acknowledged(
    bench: Bench, what: str, error: int
) -> None:
    bench.append()
    await bench.flush()
    bench.disk.fail(what, ".journal", error)
    bench.append()
    await asyncio.sleep(0)
    bench.append()
    await bench.flush()
    calls = len(bench.disk.calls)
    bench.disk.heal()
    bench.append()
    await bench.flush()
    assert bench.durable == [[1]]
    assert [getattr(fault, "errno", None) for fault in bench.faults] == [error]
    assert len(bench.disk.calls) == calls
    await bench.journal.stop()


async def test_a_directory_that_cannot_be_synced_is_a_fault(bench: Bench) -> None:
    bench.disk.fail("sync_directory", "", errno.EIO)
    bench.append()
    await bench.flush()
    assert (len(bench.faults), bench.durable) == (1, [])
    await bench.journal.stop()


async def test_two_faults_are_reported_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=64 + FLUSH_OF_ONE + 7)
    for _ in range(2):
        bench.append()
        await bench.flush()
    bench.disk.before = _broken
    bench.journal.forget(bench.journal.files[:1])
    bench.append()
    await bench.flush()
    assert len(bench.faults) == 1
    assert bench.durable == [[1], [2]]
    await bench.journal.stop()


def _broken(_: object) -> None:
    raise OSError(errno.EIO, "broken")


async def test_a_bug_in_the_callback_stops_everything_behind_it(bench: Bench) -> None:
    def durable(tokens: list[Any]) -> None:
        bench.durable.append(tokens)
        raise ZeroDivisionError

    bench.journal._on_durable = durable
    bench.append()
    await asyncio.sleep(0)
    bench.append()
    await bench.flush()
    assert bench.durable == [[1]]
    assert [type(fault) for fault in bench.faults] == [ZeroDivisionError]
    await bench.journal.stop()


# --- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def quick_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_FULL_DISK_RETRY_S", 0)


@pytest.mark.usefixtures("quick_retry")
@pytest.mark.parametrize("what", ["create", "allocate", "write"])
async def test_without_room_for_a_file_the_journal_waits_reports_why_and_resumes(
    tmp_path: Path, what: str
) -> None:
    bench = Bench(tmp_path, file_bytes=64 + FLUSH_OF_ONE + 7)
    bench.append()
    await bench.flush()
    full(bench.disk, what, "2.journal")
    bench.append()
    await asyncio.sleep(0)
    bench.append()
    for _ in range(3):
        bench.worker.step()
        assert "the disk is full: [Errno 28] No space left" in str(bench.journal.blocked)
        assert not journal_path(tmp_path, 2).exists()
        await bench.worker.wait()
    assert bench.durable == [[1]]
    bench.disk.heal()
    await bench.flush()
    assert bench.durable == [[1], [2], [3]]
    assert (bench.journal.blocked, bench.faults) == (None, [])
    await bench.journal.stop()
    assert [each[1] for each in content(bench.recover())] == [1, 2, 3]


FREES = b"frees space"


@pytest.mark.usefixtures("quick_retry")
async def test_without_room_a_command_that_frees_space_and_what_is_before_it_use_the_spare_bytes(
    tmp_path: Path,
) -> None:
    file_bytes, spare_bytes = 64 + FLUSH_OF_ONE + 7, 2 * (FLUSH_OF_ONE + 20)
    bench = Bench(
        tmp_path, file_bytes=file_bytes, spare_bytes=spare_bytes, frees_space=lambda _, it: it == FREES
    )
    bench.append()
    await bench.flush()
    assert journal_path(tmp_path, 1).stat().st_size == file_bytes + spare_bytes
    full(bench.disk, "create", "2.journal")
    bench.append(b"waits")
    await bench.flush()
    assert bench.journal.blocked is not None
    bench.journal.check_spare(len(FREES))
    bench.append_unit((ENTRY, 2, 1, 1, 1, 0, None, FREES))
    await bench.flush()
    assert bench.durable == [[1], [2], [3]]
    bench.append(b"behind")
    await bench.flush()
    assert bench.journal.blocked is not None
    with pytest.raises(Unavailable, match=r"the disk is full: .*make room for \d+ bytes by other means"):
        bench.journal.check_spare(len(FREES))
    bench.append_unit((ENTRY, 2, 1, 2, 1, 0, None, FREES))
    for _ in range(3):
        await bench.worker.wait()
        bench.worker.step()
        await asyncio.sleep(0)
    assert bench.journal.blocked is not None
    bench.disk.heal()
    while bench.durable[-1] != [5]:
        await bench.worker.wait()
        await bench.flush()
    await bench.journal.stop()
    found = bench.recover()
    assert [each[2] for each in content(found)] == [b"payload", b"waits", b"behind", FREES, FREES]


async def test_the_spare_bytes_are_given_back_when_the_next_file_is_created(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=1000, spare_bytes=500)
    for _ in range(3):
        bench.append(b"x" * 600)
        await bench.flush()
    sizes = [journal_path(tmp_path, number).stat().st_size for number in (1, 2, 3)]
    assert sizes == [1000, 1000, 1500]
    await bench.journal.stop()
    found = bench.recover()
    again = Bench(tmp_path, file_bytes=1000, spare_bytes=500, at=found.at, files=found.files)
    again.append(b"x" * 600)
    await again.flush()
    await again.journal.stop()
    assert [each.number for each in again.recover().files] == [1, 2, 3, 4]


async def test_stopping_with_a_full_disk_abandons_unacknowledged_entries(bench: Bench) -> None:
    full(bench.disk, "allocate", ".journal")
    bench.append()
    await bench.flush()
    bench.append()
    await asyncio.wait_for(bench.journal.stop(), 10)
    assert (bench.durable, bench.faults) == ([], [])
    assert bench.recover() == RecoveredJournal()


async def test_stopping_writes_appended_entries(bench: Bench) -> None:
    bench.append()
    stopping = asyncio.create_task(bench.journal.stop())
    await bench.flush()
    await stopping
    assert bench.durable == [[1]]
    assert bench.worker.stopped


# --- what is written ahead ------------------------------------------------------------------------


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of 1024 bytes."""
    monkeypatch.setattr(journal_module, "_AHEAD_BYTES", 1024)
    monkeypatch.setattr(journal_module, "_ZEROS", memoryview(bytes(1024)))


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize("worker", [StepWorker, RingWorker])
async def test_the_first_small_flush_of_a_stretch_writes_zeros_to_its_end(
    tmp_path: Path, worker: type[StepWorker]
) -> None:
    bench = Bench(tmp_path, file_bytes=2500, worker=worker())
    size, begin, filled = FLUSH_OF_ONE + 36, 64, 0
    expected = []
    for _ in range(16):
        bench.append(bytes(36))
        await bench.flush()
        end = begin + size
        if end > filled:
            filled = 1024 if end <= 1024 else 2048 if end <= 2048 else 2500
            expected.append((begin, filled))
        else:
            expected.append((begin, end))
        begin = end
    assert bench.disk.durable_writes == expected
    assert [written for written in expected if written[1] in (1024, 2048, 2500)] == expected[0:1] + expected[
        7:8
    ] + expected[14:15]
    await bench.journal.stop()
    assert bench.recover().at.position == begin


@pytest.mark.usefixtures("short_stretches")
async def test_a_flush_as_large_as_a_stretch_writes_no_zeros_after_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_bytes=8192)
    for size in (1500, 10):
        bench.append(bytes(size))
        await bench.flush()
    end = 64 + FLUSH_OF_ONE + 1500
    assert bench.disk.durable_writes == [(64, end), (end, 2048)]
    await bench.journal.stop()


@pytest.mark.usefixtures("short_stretches")
async def test_zeros_are_written_ahead_again_where_recovery_found_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(bytes(10))
    await bench.flush()
    await bench.journal.stop()
    found = bench.recover()
    again = Bench(tmp_path, at=found.at, files=found.files)
    again.append(bytes(10))
    await again.flush()
    assert again.disk.durable_writes == [(found.at.position, 1024)]
    await again.journal.stop()
    assert again.recover().at.position == found.at.position + FLUSH_OF_ONE + 10


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what is in memory")
async def test_what_is_written_ahead_stays_in_memory(tmp_path: Path) -> None:
    # The device would be asked for a block that is not there, before a part of it is written.
    durable: asyncio.Queue[list[Any]] = asyncio.Queue()
    journal = Journal(
        RealDisk(),
        ThreadWorker("journal"),
        JournalOptions(tmp_path, OWNER, 4 << 20),
        on_durable=durable.put_nowait,
        on_fault=raised,
    )
    for index in range(1, 41):
        journal.append([original(index, bytes(20_000))], index)
        assert await durable.get() == [index]
    written_to = journal.files[-1].end
    with journal_path(tmp_path, 1).open("rb") as file:
        for position in range(0, written_to, 4096):
            assert os.preadv(file.fileno(), [bytearray(1)], position, os.RWF_NOWAIT) == 1
    await journal.stop()


def raised(error: BaseException) -> None:
    raise error


# --- flushes without the worker's thread ----------------------------------------------------------


async def test_flushes_without_the_thread_leave_the_same_files(tmp_path: Path) -> None:
    worker = RingWorker()
    for directory, bench_worker in (("threads", StepWorker()), ("ring", worker)):
        (tmp_path / directory).mkdir()
        bench = Bench(tmp_path / directory, file_bytes=1000, worker=bench_worker)
        for number in range(40):
            bench.append(b"payload %d" % number)
            await bench.drain()
        assert bench.durable == [[number] for number in range(1, 41)]
        assert len(bench.journal.files) > 3
    files = sorted((tmp_path / "ring").iterdir())
    assert len(worker.begun) == 40 - len(files), "the thread writes only what begins a file"
    for file in files:
        assert file.read_bytes() == (tmp_path / "threads" / file.name).read_bytes()


async def test_a_failed_write_without_the_thread_ends_the_journal(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=RingWorker(OSError(errno.EIO, "gone")))
    bench.append()
    await bench.drain()
    bench.append()
    await bench.flush()
    bench.append()
    await bench.flush()
    assert bench.durable == [[1]]
    assert [str(fault) for fault in bench.faults] == ["[Errno 5] gone"]
