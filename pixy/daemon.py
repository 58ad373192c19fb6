"""The daemon's life: start -> serve -> drain -> stop. The only place that wires the parts together.

    start   each cluster recovers, the door listens; "ready" is said when all of it can be used
    serve   until SIGTERM or SIGINT, or until something is broken that only a restart mends
    drain   health says NOT_SERVING; nothing is offered or taken any more; acks are taken while offers are out, at most
            `shutdown_timeout`; offsets are committed and everything is written
    stop    the door closes, the clusters are released, the process ends with 0

A second signal ends the process at once, as a crash would: nothing that was acknowledged is lost by it.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import structlog

from pixy.api.grpc import GrpcServer
from pixy.backend import EmbeddedBackend
from pixy.clock import SystemClock
from pixy.cluster import Node, NodeOptions
from pixy.config import Config, ProxyConfig, effective_client_id
from pixy.errors import Internal
from pixy.proxy import Proxy
from pixy.storage import RealDisk, ThreadWorker

__all__ = ["Daemon", "prepare_interpreter", "run", "settle_interpreter"]

log = structlog.get_logger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""With the interpreter's 5 ms a busy loop delays every sync of the journal thread tenfold."""

_GC_THRESHOLDS = (10_000, 20, 20)
"""A full collection stops everything for as long as it takes to look at every object. Records and batches make no cycles."""

_STOP_S = 5.0
"""What committing and writing may take once nobody is waited for any more."""

_CANCEL_S = 1.0

OnReady = Callable[[Mapping[str, str]], None]


class DaemonFault(Internal):
    """Something broke that only a restart mends."""


class Daemon:
    """One daemon in the running event loop.

    Args:
        config: everything it is told.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = SystemClock()
        self._proxies: dict[str, Proxy] = {}
        self._server: GrpcServer | None = None
        self._stop = asyncio.Event()
        self._fault: BaseException | None = None
        self._broken = asyncio.Event()

    async def start(self) -> Mapping[str, str]:
        """Recover the clusters and listen.

        Returns:
            The addresses by name of the door.

        Raises:
            StartError, CorruptData: it cannot serve; nothing is left open.
        """
        try:
            for name, proxy_config in self._config.proxies.items():
                proxy = self._proxy(name, proxy_config)
                await proxy.start()
                self._proxies[name] = proxy
            by_cluster = {**self._proxies, "": self._proxies[self._config.effective_default_cluster]}
            server = GrpcServer(self._config, by_cluster, self._clock, self.on_fault)
            addresses = await server.start()
            self._server = server
            await server.serve()
        except BaseException:
            for proxy in self._proxies.values():
                await proxy.stop()
            raise
        return addresses

    async def wait(self) -> None:
        """Serve until `request_stop` or until something breaks.

        Raises:
            DaemonFault: what broke.
        """
        await self._stop.wait()
        self._raise_fault()

    def request_stop(self) -> None:
        """End `wait`."""
        self._stop.set()

    async def drain_and_stop(self) -> None:
        """Hand everything over in good order, within `shutdown_timeout` and a little.

        Raises:
            DaemonFault: it took longer, or something broke meanwhile. What was answered is safe; offsets may be behind.
        """
        limit = self._config.shutdown_timeout + _STOP_S
        drain = asyncio.create_task(self._drain_and_stop(), name="drain")
        broken = asyncio.create_task(self._broken.wait(), name="watch for faults while draining")
        ended, _ = await asyncio.wait({drain, broken}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, broken):
            task.cancel()
        await asyncio.wait({drain, broken}, timeout=_CANCEL_S)
        self._raise_fault()
        if drain not in ended:
            raise DaemonFault(f"could not stop in good order within {limit:g} seconds")
        await drain

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise DaemonFault(str(self._fault) or repr(self._fault)) from self._fault

    async def _drain_and_stop(self) -> None:
        assert self._server is not None
        log.info("draining")
        await self._server.begin_drain()
        proxies = list(self._proxies.values())
        for proxy in proxies:
            proxy.begin_drain()
        in_doubt = await asyncio.gather(*(proxy.drain(self._config.shutdown_timeout) for proxy in proxies))
        await self._server.stop(grace=1.0)
        for proxy in proxies:
            await proxy.stop()
        if any(in_doubt):
            raise DaemonFault(f"stopped with {sum(in_doubt)} messages that are not known to be written")
        log.info("stopped")

    def _proxy(self, name: str, config: ProxyConfig) -> Proxy:
        options = NodeOptions(
            directory=Path(self._config.data_dir) / name,
            journal=config.journal,
            storage=config.storage,
            random_bytes=os.urandom,
            worker=ThreadWorker,
        )
        node = Node(RealDisk(), self._clock, options, self.on_fault)
        return Proxy(
            name,
            config,
            EmbeddedBackend(node),
            client_id=effective_client_id(config.client_id),
            clock=self._clock,
            rng=Random(),
            on_fault=self.on_fault,
        )

    def on_fault(self, error: BaseException) -> None:
        """Something broke that only a restart mends: end `wait` and `drain_and_stop` with it."""
        if self._fault is None:
            self._fault = error
            log.critical("broken beyond repair, stopping at once", exc_info=error)
            self._broken.set()
            self._stop.set()

    def on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop calls with an exception that nobody caught."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        # A callback has nobody else to tell. Tasks have owners: ours tell `on_fault`, grpc sees to its own.
        if error is not None and "handle" in context and _is_ours(error):
            self.on_fault(error)


def _is_ours(error: BaseException) -> bool:
    """Whether an exception came through pixy's own code, which has then left something half done."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("pixy.") for frame, _ in frames)


async def _run(config: Config, on_ready: OnReady) -> None:
    daemon = Daemon(config)
    loop = asyncio.get_running_loop()
    for warning in config.warnings:
        log.warning(warning)

    def on_signal(number: int) -> None:
        log.info("got a signal", signal=signal.Signals(number).name)
        for other in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)
        daemon.request_stop()

    loop.set_exception_handler(daemon.on_loop_exception)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    addresses = await daemon.start()
    settle_interpreter()
    on_ready(addresses)
    await daemon.wait()
    await daemon.drain_and_stop()


def run(config: Config, on_ready: OnReady) -> None:
    """Run a daemon until it is told to stop. `on_ready` gets its addresses by name of the door.

    Raises:
        StartError: it cannot start; the message is for the operator.
        CorruptData: what is stored is damaged.
        DaemonFault: something broke that only a restart mends. What was not answered may or may not be written.
    """
    prepare_interpreter()
    _raise_file_limit()
    try:
        import uvloop

        uvloop.run(_run(config, on_ready))
    except ImportError:
        asyncio.run(_run(config, on_ready))


def prepare_interpreter() -> None:
    """Set the interpreter for a process whose event loop must not wait."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)


def settle_interpreter() -> None:
    """Everything that lives as long as the process is there: let collections pass it by."""
    gc.collect()
    gc.freeze()


def _raise_file_limit() -> None:
    """A file for each connection and each partition that is being written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
