"""pixy/daemon.py: what a fault does. The daemon's whole life is proven with real processes in tests/integration."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pixy.config import load_config
from pixy.daemon import Daemon, DaemonFault


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    flags = {"grpc_addr": "127.0.0.1:0", "data_dir": str(tmp_path), "shutdown_timeout": "1s"}
    daemon = Daemon(load_config(None, {}, flags))
    await daemon.start()
    yield daemon
    await daemon._drain_and_stop()


async def test_a_fault_ends_the_wait_with_its_reason(daemon: Daemon) -> None:
    waiting = asyncio.create_task(daemon.wait())
    daemon.on_fault(OSError(5, "the disk is gone"))
    with pytest.raises(DaemonFault, match="the disk is gone"):
        await waiting


@pytest.fixture
async def handled(daemon: Daemon) -> AsyncIterator[Daemon]:
    """The daemon, with the loop's exceptions coming to it."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(daemon.on_loop_exception)
    yield daemon
    loop.set_exception_handler(before)


async def test_a_bug_in_a_callback_stops_the_daemon_instead_of_leaving_a_partition_stuck(
    handled: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytearray:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pixy.proxy.accumulator.build_batch", broken)
    proxy = handled._proxies["default"]
    proxy.produce("t", None, b"m", (), lambda *_: None)
    with pytest.raises(DaemonFault, match="a bug"):
        await handled.wait()
    proxy._accumulators._empty.set()


async def test_an_exception_in_somebody_elses_callback_is_only_logged(handled: Daemon) -> None:
    def broken() -> None:
        raise BlockingIOError(11, "try again")

    asyncio.get_running_loop().call_soon(broken)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    handled.request_stop()
    await handled.wait()


async def test_a_fault_during_the_drain_is_not_a_good_end(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = daemon._drain_and_stop

    async def stuck() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(daemon, "_drain_and_stop", stuck)
    asyncio.get_running_loop().call_soon(daemon.on_fault, OSError(5, "the disk is gone"))
    with pytest.raises(DaemonFault, match="the disk is gone"):
        await daemon.drain_and_stop()
    monkeypatch.setattr(daemon, "_drain_and_stop", drain)


async def test_a_drain_that_takes_too_long_is_not_a_good_end(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = daemon._drain_and_stop

    async def stuck() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("pixy.daemon._STOP_S", -0.95)
    monkeypatch.setattr(daemon, "_drain_and_stop", stuck)
    with pytest.raises(DaemonFault, match="could not stop in good order"):
        await daemon.drain_and_stop()
    monkeypatch.setattr(daemon, "_drain_and_stop", drain)
