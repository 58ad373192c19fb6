"""The reserve: released when the disk is full, and reserved again as soon as possible."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pixy.cluster.log import disk_reserve as reserve_module
from pixy.errors import Unavailable
from tests.cluster.reserves import SIZE, Bench


@pytest.fixture(autouse=True)
def constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve_module, "_RETRY_S", 0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A reserve that holds its space."""
    bench = Bench(tmp_path)
    bench.reserve.start()
    await bench.step()
    yield bench
    bench.reserve.stop()


async def test_on_a_full_disk_the_space_is_released_and_messages_are_refused_at_once(bench: Bench) -> None:
    bench.reserve.release()
    assert isinstance(bench.reserve.blocked, Unavailable)
    assert str(bench.reserve.blocked) == (
        f"the disk is full: the rest of {SIZE} bytes (storage.reserve_bytes) is reserved for offset commits"
    )
    assert bench.size == SIZE
    await bench.step()
    assert bench.size is None


async def test_messages_are_accepted_again_only_once_the_space_is_reserved_again(bench: Bench) -> None:
    bench.no_room()
    bench.reserve.release()
    for _ in range(5):
        await bench.step()
        assert (bench.size, bench.blocked) == (None, True)
    bench.disk.heal()
    await bench.step()
    assert (bench.size, bench.blocked) == (SIZE, False)
    assert len(bench.worker) == 0


async def test_the_space_is_left_to_pending_writes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.waiting = True
    bench.reserve.release()
    await bench.step()
    tries: list[bool] = []

    def full() -> bool:
        tries.append(True)
        bench.waiting = len(tries) < 3
        return bench.waiting

    monkeypatch.setattr(bench.reserve, "_full", full)
    await bench.step()
    assert len(tries) == 3
    assert (bench.size, bench.blocked) == (SIZE, False)


async def test_repeated_reports_of_a_full_disk_count_once(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.no_room()
    for _ in range(5):
        bench.reserve.release()
    assert len(bench.worker) == 1
    for _ in range(5):
        await bench.step()
        bench.reserve.release()
        assert len(bench.worker) <= 1
    assert capsys.readouterr().out.count("the disk is full") == 1


async def test_the_space_can_be_released_a_second_time(bench: Bench) -> None:
    for _ in range(3):
        bench.reserve.release()
        await bench.step()
        assert (bench.size, bench.blocked) == (None, True)
        await bench.step()
        assert (bench.size, bench.blocked) == (SIZE, False)


async def test_a_disk_that_fills_up_while_space_is_being_reserved_refuses_messages(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.reserve.start()
    bench.reserve.release()  # before it is known that the space is reserved
    bench.worker.step()
    assert bench.blocked
    bench.worker.step()
    assert (bench.size, bench.blocked) == (None, True)
    await bench.step()
    assert (bench.size, bench.blocked) == (SIZE, False)
    assert len(bench.worker) == 0
    bench.reserve.stop()


async def test_a_start_on_a_full_disk_runs_one_retry_loop(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.waiting = True
    bench.reserve.release()  # while the node is still starting
    await bench.step()
    bench.reserve.start()
    bench.waiting = False
    await bench.step()
    assert (bench.size, bench.blocked) == (SIZE, False)
    assert len(bench.worker) == 0
    bench.reserve.stop()


@pytest.mark.parametrize("what", ["allocate", "truncate"])
async def test_a_reserve_that_cannot_be_changed_is_logged_and_retried(
    bench: Bench, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.disk.fail(what, "reserve", errno.EIO)
    bench.reserve.release()
    for _ in range(3):
        await bench.step()
        assert bench.blocked
    assert "the reserve on the disk cannot be changed" in capsys.readouterr().out
    bench.disk.heal()
    await bench.step()
    assert (bench.size, bench.blocked) == (SIZE, False)


async def test_a_reserve_that_cannot_be_removed_is_still_reserved(bench: Bench) -> None:
    bench.disk.fail("unlink", "reserve", errno.EIO)
    bench.reserve.release()
    await bench.step()
    assert (bench.size, bench.blocked) == (SIZE, True)
    await bench.step()
    assert (bench.size, bench.blocked) == (SIZE, False)


async def test_reserved_space_stays_reserved_after_a_stop_and_nothing_is_retried(bench: Bench) -> None:
    bench.reserve.stop()
    bench.reserve.release()
    assert (bench.size, bench.blocked, len(bench.worker)) == (SIZE, False, 0)


async def test_work_in_progress_at_a_stop_has_no_effect(bench: Bench) -> None:
    bench.reserve.release()
    bench.reserve.stop()
    bench.worker.step()
    assert (bench.blocked, len(bench.worker)) == (True, 0)
    assert bench.reserve._timer is None


async def test_a_size_of_0_refuses_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, size=0)
    bench.reserve.start()
    await bench.step()
    bench.reserve.release()
    assert (bench.size, bench.blocked, len(bench.worker)) == (None, False, 0)
