"""The daemon's life: start -> serve -> drain -> stop. The only place that wires the parts together.

    start   each cluster recovers or is connected to, the door listens; "ready" is said when all of it can be used. While a
            Kafka cluster cannot be reached, the others are served, health says NOT_SERVING, and requests for it are answered
            UNAVAILABLE with the reason
    serve   until SIGTERM or SIGINT, or until storage or a state machine is broken, which only a restart mends; any other fault is
            contained (`faults`). While no broker of a Kafka cluster can be reached, health says NOT_SERVING again, as at the start
    drain   health says NOT_SERVING and connections get GOAWAY; nothing is offered or taken any more; acks are taken while offers are
            out, at most `shutdown_timeout`, also on new connections; offsets are committed and everything is written
    stop    the door closes, the clusters are released, the process ends with 0

A second signal ends the process at once, as a crash would: nothing that was acknowledged is lost by it. SIGUSR1 logs what there is at the
moment: tasks, connections, calls, and what each cluster keeps for its callers.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import structlog

from pixy.api.grpc import GrpcServer
from pixy.backend import Backend, EmbeddedBackend
from pixy.clock import SystemClock
from pixy.cluster import Node, NodeOptions, unsynced_logs_max
from pixy.config import Config, ProxyConfig, effective_client_id
from pixy.errors import Internal
from pixy.faults import FaultLog
from pixy.proxy import Proxy
from pixy.scheduling import run_soon
from pixy.storage import RealDisk, ThreadWorker

if TYPE_CHECKING:
    from pixy.backend.kafka import KafkaBackend

__all__ = ["Daemon", "QuietCollections", "prepare_interpreter", "run", "settle_interpreter"]

log = structlog.get_logger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""With the interpreter's 5 ms a busy loop delays every sync of the journal thread tenfold."""

_GC_THRESHOLDS = (1_000, 5, 10_000)
"""A collection stops everything until it has looked at every object of its generation: with these, 1 ms for what is young, 3 ms for the
next. Small or large, they take the same time together. Records and batches make no cycles, so under load a full collection, which takes
10 ms for a thousand partitions that were made since the start, is put off for long; see `QuietCollections`."""

_QUIET_LOOK_S = 30.0
_QUIET_SHARE = 0.1

_STOP_S = 5.0
"""What committing and writing may take once nobody is waited for any more."""

_CANCEL_S = 1.0

_MENDED_BY_RESTART = ("pixy.storage.", "pixy.cluster.")
"""Where faults end the process, see `pixy.faults`."""

_OTHER_FILES = 128
"""Listeners, connections to Kafka, and what the interpreter has open."""
_CONNECTIONS_SHARE_MIN = 8
"""So much of the limit of open files is for connections however many clusters there are. Storage waits for descriptors then."""

OnReady = Callable[[Mapping[str, str]], None]


class QuietCollections:
    """Full collections of cycles at times when the process has little to do.

    They are looked for every 30 s: if since the last look at most a tenth of a core was used, and there was enough activity since the last
    full collection for a younger generation to be collected. So what the loads of the day left goes when they end.

    Args:
        loop: whose timer it is.
        process_time: processor seconds of the process so far.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process_time: Callable[[], float] = time.process_time
    ) -> None:
        self._loop = loop
        self._process_time = process_time
        self._used_s = process_time()
        self._timer = loop.call_later(_QUIET_LOOK_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        before, self._used_s = self._used_s, self._process_time()
        if self._used_s - before <= _QUIET_SHARE * _QUIET_LOOK_S and gc.get_count()[2]:
            gc.collect()
        self._timer = self._loop.call_later(_QUIET_LOOK_S, self._look)


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
        self._faults = FaultLog(self._clock)
        self._proxies: dict[str, Proxy] = {}
        # The Kafka clusters, by name.
        self._kafka: dict[str, KafkaBackend] = {}
        # Every cluster was reached once, and nothing is drained.
        self._ready = False
        self._server: GrpcServer | None = None
        self._stop = asyncio.Event()
        self._fault: BaseException | None = None
        self._broken = asyncio.Event()

    async def start(self) -> Mapping[str, str]:
        """Recover the clusters and listen. Health says NOT_SERVING until `wait_ready` returns.

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
            config = _within_file_limit(self._config)
            server = GrpcServer(config, by_cluster, self._clock, self._faults.note)
            addresses = await server.start()
            self._server = server
        except BaseException:
            for proxy in self._proxies.values():
                await proxy.stop()
            raise
        return addresses

    async def wait_ready(self) -> bool:
        """Return when every cluster was reached, and everybody is told; False if the daemon is to stop before that."""
        assert self._server is not None
        for name, backend in self._kafka.items():
            if backend.fault:
                log.warning(
                    "not ready: a Kafka cluster cannot be reached", cluster=name, reason=backend.fault
                )
        reached = asyncio.gather(*(backend.wait_reached() for backend in self._kafka.values()))
        stop = asyncio.create_task(self._stop.wait(), name="watch for the stop while not ready")
        either: set[asyncio.Future[Any]] = {reached, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not reached.done():
            reached.cancel()
            await asyncio.wait({reached})
            return False
        self._ready = True
        self._tell_health()
        return True

    def _kafka_changed(self, name: str) -> None:
        """No broker of a cluster can be reached any more, or one can again."""
        if not self._ready:
            return
        fault = self._kafka[name].fault
        if fault:
            log.warning("not ready: a Kafka cluster cannot be reached", cluster=name, reason=fault)
        else:
            log.info("a Kafka cluster can be reached again", cluster=name)
        self._tell_health()

    def _tell_health(self) -> None:
        assert self._server is not None
        self._server.tell_health(serving=self._ready and not any(each.fault for each in self._kafka.values()))

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
        self._ready = False
        self._tell_health()
        proxies = list(self._proxies.values())
        for proxy in proxies:
            proxy.begin_drain()
        self._server.begin_drain()
        in_doubt = await asyncio.gather(*(proxy.drain(self._config.shutdown_timeout) for proxy in proxies))
        await self._server.stop(grace=1.0)
        for proxy in proxies:
            await proxy.stop()
        if any(in_doubt):
            raise DaemonFault(f"stopped with {sum(in_doubt)} messages that are not known to be written")
        log.info("stopped")

    def _proxy(self, name: str, config: ProxyConfig) -> Proxy:
        client_id = effective_client_id(config.client_id)
        backend: Backend
        if config.kind == "kafka":
            backend = self._kafka_backend(name, config, client_id)
            gathering = replace(config.producer, flush_frequency=config.producer.linger_ms / 1000)
            config = replace(config, producer=gathering)
        else:
            backend = EmbeddedBackend(self._node(name, config))
        return Proxy(
            name,
            config,
            backend,
            client_id=client_id,
            clock=self._clock,
            rng=Random(),
            on_fault=self._faults.note,
        )

    def _kafka_backend(self, name: str, config: ProxyConfig, client_id: str) -> "KafkaBackend":
        # Late: a daemon with embedded clusters only does without Kafka's client.
        from pixy.backend.kafka import KafkaBackend, KafkaOptions, StagingPlace

        directory = Path(self._config.data_dir) / name / "kafka"
        staging = StagingPlace(RealDisk(), directory, ThreadWorker, self._clock, config.staging)
        backend = KafkaBackend(
            KafkaOptions.from_config(config, client_id),
            staging,
            self._faults.note,
            on_storage_fault=self.on_fault,
        )
        backend.watch(partial(self._kafka_changed, name))
        self._kafka[name] = backend
        return backend

    def _node(self, name: str, config: ProxyConfig) -> Node:
        options = NodeOptions(
            directory=Path(self._config.data_dir) / name,
            journal=config.journal,
            storage=config.storage,
            random_bytes=os.urandom,
            worker=ThreadWorker,
            staging=config.staging,
        )
        return Node(RealDisk(), self._clock, options, self.on_fault)

    def counts(self) -> dict[str, int]:
        """What there is at the moment: tasks, connections, calls, and what each cluster keeps for callers."""
        counts = {"tasks": len(asyncio.all_tasks()), "bugs": self._faults.count}
        if self._server is not None:
            connections = self._server.connections
            counts["connections"] = len(connections)
            for name in ("running", "request_bytes", "queued_bytes"):
                counts[name] = sum(getattr(connection, name) for connection in connections)
        for name, proxy in self._proxies.items():
            counts |= {f"{name}.{what}": count for what, count in proxy.counts().items()}
        return counts

    def log_counts(self) -> None:
        """Tell the operator."""
        log.info("counts", **self.counts())

    def on_fault(self, error: BaseException) -> None:
        """Storage or a state machine broke, which only a restart mends: end `wait` and `drain_and_stop` with it."""
        if self._fault is None:
            self._fault = error
            log.critical("broken beyond repair, stopping at once", exc_info=error)
            self._broken.set()
            self._stop.set()

    def on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop calls with an exception that nobody caught."""
        error: BaseException | None = context.get("exception")
        ours = "" if error is None else _outermost_module(error)
        if error is None or not ours:
            loop.default_exception_handler(context)
        elif "handle" in context and ours.startswith(_MENDED_BY_RESTART):
            # A callback of theirs has left something half done.
            self.on_fault(error)
        else:
            self._faults.note(error)


def _outermost_module(error: BaseException) -> str:
    """The module of pixy that an exception went through last, empty if there is none."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((module for module in modules if module.startswith("pixy.")), "")


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
    loop.add_signal_handler(signal.SIGUSR1, daemon.log_counts)
    addresses = await daemon.start()
    settle_interpreter()
    collections = QuietCollections(loop)
    if await daemon.wait_ready():
        on_ready(addresses)
    await daemon.wait()
    collections.stop()
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
    run_soon()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)


def settle_interpreter() -> None:
    """Everything that lives as long as the process is there: let collections pass it by."""
    gc.collect()
    gc.freeze()


def _within_file_limit(config: Config) -> Config:
    """The configuration with no more connections than the limit of open files allows beside what storage opens."""
    limit = RealDisk().open_file_limit()
    embedded = sum(proxy.kind == "embedded" for proxy in config.proxies.values())
    allowed = max(limit - _OTHER_FILES - embedded * unsynced_logs_max(limit), limit // _CONNECTIONS_SHARE_MIN)
    if config.grpc.max_connections <= allowed:
        return config
    log.warning(
        "fewer connections than grpc.max_connections: each takes a file descriptor",
        max_connections=config.grpc.max_connections,
        allowed=allowed,
        open_files_limit=limit,
    )
    return replace(config, grpc=replace(config.grpc, max_connections=allowed))


def _raise_file_limit() -> None:
    """A file for each connection and each partition that is being written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
