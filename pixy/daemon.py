"""Lifecycle of the daemon: start -> serve -> drain -> stop. The only place that wires the parts
together.

    start   The management listener is there first. Each cluster recovers or connects, and the
            server listens. "ready" is logged once every cluster is ready. While one is not, the log
            has the reason, the others are served, health reports NOT_SERVING, and requests for it
            are answered UNAVAILABLE.
    serve   Until SIGTERM or SIGINT, or until storage or a state machine is broken, which only a
            restart repairs; any other fault is contained (`faults`). Health reports NOT_SERVING
            whenever a cluster is not ready.
    drain   Health reports NOT_SERVING and connections get GOAWAY. Nothing is offered or accepted
            any more. Acks are accepted while offers are outstanding, for at most
            `shutdown_timeout`, also on new connections. Offsets are committed, buffers written.
    stop    The server closes, the clusters are released, the process exits with 0.

A second signal ends the process at once, like a crash: no acknowledged message is lost by it.
SIGUSR1 logs counts of tasks, connections, calls, and of what each cluster buffers for its callers.
SIGHUP reads changed certificates and users now, and tells which options wait for the next start
(`reload`).
"""

import asyncio
import ctypes
import gc
import math
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
from typing import Any

import structlog

from pixy import __version__
from pixy.aio.scheduling import run_soon
from pixy.aio.tasks import Tasks
from pixy.api.grpc import GrpcServer, server_options
from pixy.api.http import HttpServer
from pixy.api.kafka import KafkaServer
from pixy.backend import Backend, EmbeddedBackend
from pixy.clock import Clock, SystemClock
from pixy.cluster import ClusterOptions, Node, NodeOptions, unsynced_logs_max
from pixy.config import Config, ProxyConfig, check_files, effective_client_id, find_unverified
from pixy.drain_report import report_drain
from pixy.errors import ConfigError, Internal, StartError
from pixy.faults import FaultLog
from pixy.management import ClusterParts, ManagementServer, Observed
from pixy.multiraft import frame_bytes_max
from pixy.noted_time import note_time, noted_time
from pixy.peers import Address, PeerCertificates, PeerOptions, Peers, SharedSecrets, TcpNetwork
from pixy.proxy import Proxy
from pixy.reload import maybe_read_again, say_used
from pixy.serving import Server
from pixy.storage import RealDisk, ThreadWorker
from pixy.troubles import disk_space, low_disk

log = structlog.get_logger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""The interpreter's default of 5 ms makes a busy event loop delay every sync of the journal thread
tenfold.
"""

_GC_THRESHOLDS = (1_000, 2, 25_000)
"""Thresholds of the garbage collector's generations.

A collection stops the process until every object of its generation was visited: with these values 1
ms for the young generation and 2 ms for the next, which may have ten thousand objects, such as the
tasks of partitions that a group has just begun to consume. The total time does not depend on the
thresholds. Records and batches form no cycles, so a full collection, which takes 10 ms for a
thousand partitions created since the start, is postponed under load; see `QuietCollections`.
"""

_QUIET_LOOK_S = 30.0
_QUIET_SHARE = 0.1

_STOP_S = 5.0
"""Time limit of the last commits and writes, beyond `shutdown_timeout`."""

_CANCEL_S = 1.0

_STEPS = "pixy.aio.steps"
_MENDED_BY_RESTART = ("pixy.storage.", "pixy.staging.", "pixy.cluster.", "pixy.multiraft.", _STEPS)
"""Packages and modules whose faults end the process; see `pixy.faults`. A fault in steps is that of
whoever has its work done in them, if that is known.
"""

_OTHER_FILES = 128
"""File descriptors of listeners, connections to Kafka, and the interpreter."""
_CONNECTIONS_SHARE_MIN = 8
"""At least one in eight descriptors is for connections, however many clusters there are; storage
then waits for descriptors.
"""

OnReady = Callable[[Mapping[str, str]], None]
ReadAgain = Callable[[], Config]
SetUpLog = Callable[[Config], None]


class QuietCollections:
    """Full garbage collections while the process is idle.

    Every 30 s a full collection runs if the process used at most a tenth of a core since the last
    check, and was active enough since the last full collection for a younger generation to be
    collected. So garbage of a busy period goes when the period ends, and what was freed in it is
    given back to the system.

    Args:
        loop: the event loop, for the timer.
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
        """Cancel the timer."""
        self._timer.cancel()

    def _look(self) -> None:
        before, self._used_s = self._used_s, self._process_time()
        if self._used_s - before <= _QUIET_SHARE * _QUIET_LOOK_S and gc.get_count()[2]:
            gc.collect()
            give_back_memory()
        self._timer = self._loop.call_later(_QUIET_LOOK_S, self._look)


def give_back_memory() -> None:
    """Give back to the system what was freed, if the C library is glibc: it keeps all of its heap
    below the last block in use, hundreds of megabytes after thousands of TLS handshakes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class DaemonFault(Internal):
    """A fault that only a restart repairs."""


class Daemon:
    """One daemon in the running event loop.

    Args:
        config: the whole configuration.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = SystemClock()
        self._faults = FaultLog(self._clock)
        self._tasks = Tasks(self._faults.note)
        # Of the clusters that have recovered.
        self._proxies: dict[str, Proxy] = {}
        self._make_backend = {"embedded": self._embedded_backend, "kafka": self._kafka_backend}
        # The clusters, by name.
        self._backends: dict[str, Backend] = {}
        # The nodes of embedded clusters, by name, and the names of those whose directories are new.
        self._nodes: dict[str, Node] = {}
        self._new: set[str] = set()
        # Clocks of those whose nodes agree on a time.
        self._times: dict[str, Clock] = {}
        # They note these times.
        self._notes = Tasks(self._faults.note)
        # Every cluster was ready once, and the drain has not begun.
        self._ready = False
        # The clusters that were ready once.
        self._ready_clusters: set[str] = set()
        self._peers: Peers | None = None
        self._peer_address = ""
        self._server: Server | None = None
        self._grpc: GrpcServer | None = None
        self._kafka: KafkaServer | None = None
        self._management: ManagementServer | None = None
        # Every cluster was ready once, and: the drain has begun.
        self._was_ready = self._draining = False
        self._stop = asyncio.Event()
        self._fault: BaseException | None = None
        self._broken = asyncio.Event()

    async def start(self) -> Mapping[str, str]:
        """Recover the clusters and listen. Health reports NOT_SERVING until `wait_ready` returns.

        Returns:
            The addresses by listener name.

        Raises:
            StartError, CorruptData: it cannot serve; nothing is left open.
        """
        try:
            return await self._start()
        except BaseException as error:
            if self._management is not None:
                await self._management.stop()
            if self._server is not None:
                await self._server.stop(grace=0)
            await self._notes.cancel_all()
            for proxy in self._proxies.values():
                await proxy.stop()
            if self._peers is not None:
                await self._peers.stop()
            if isinstance(error, OSError):
                raise StartError(f"the start has failed: {error}") from error
            raise

    async def _start(self) -> Mapping[str, str]:
        await self._start_peers()
        proxies = {name: self._proxy(name, each) for name, each in self._config.proxies.items()}
        by_cluster = {**proxies, "": proxies[self._config.effective_default_cluster]}
        config = _within_file_limit(self._config)
        limits = server_options(config.grpc, config.client_share_percent)
        self._server = Server(limits, self._clock, self._faults.note)
        http = HttpServer(config, by_cluster, self._server)
        self._grpc = GrpcServer(config, by_cluster, self._server, beside=http.factory)
        kafka = self._kafka = KafkaServer(config, by_cluster[""], self._server)
        management = await self._start_management(proxies, self._server, self._grpc, http, kafka)
        for name, proxy in proxies.items():
            await proxy.start()
            self._proxies[name] = proxy
            if name in self._nodes:
                note = note_time(RealDisk(), self._directory(name), self._nodes[name].time.steady_ms)
                self._notes.spawn(note, f"note the time of {name}")
        return {**await self._grpc.start(), **await http.start(), **await kafka.start(), **management}

    async def _start_management(
        self,
        proxies: Mapping[str, Proxy],
        server: Server,
        grpc: GrpcServer,
        http: HttpServer,
        kafka: KafkaServer,
    ) -> dict[str, str]:
        """Start the management listener, before the clusters recover; returns its address by its
        name.

        A second daemon of the machine does without one, unless it has an address of its own.
        """
        address = self._config.management_addr
        if not address:
            return {}
        clusters = [
            ClusterParts(
                name,
                proxies[name],
                backend,
                self._nodes.get(name),
                partial(self._proxies.__contains__, name),
                partial(self._is_ready, name),
            )
            for name, backend in self._backends.items()
        ]
        observed = Observed(
            self,
            clusters,
            server,
            self._peers,
            grpc.methods,
            http.routes,
            kafka.table.by_key.values(),
            lambda: self._faults.count,
        )
        self._management = ManagementServer(self._config, self._clock, self._faults.note, observed)
        try:
            return {"management": await self._management.start()}
        except StartError as error:
            if address != Config().management_addr:
                raise
            log.warning("there is no management listener: management_addr cannot be used", reason=str(error))
            await self._management.stop()
            self._management = None
            return {}

    async def _start_peers(self) -> None:
        """Listen for the other nodes of embedded clusters, and other pixies in front of Kafka.

        A lone node does not listen: nothing but its join list says that others may come. One that
        has others without a list listens once it has read its directory.
        """
        config, cluster = self._config, self._config.cluster
        kinds = {"embedded", "kafka"} if config.peers else {"embedded"}
        clusters = {name: each for name, each in config.proxies.items() if each.kind in kinds}
        if not config.peer_addr or not clusters:
            return
        largest = max(each.producer.max_message_bytes for each in clusters.values())
        tls = cluster.tls
        certificates = PeerCertificates(tls.cert_file, tls.key_file, tls.ca_file) if tls.cert_file else None
        defaults = PeerOptions()
        secrets = (
            SharedSecrets(cluster.secret_file, cluster.second_secret_file) if cluster.secret_file else tuple
        )
        options = PeerOptions(
            Address.parse(config.peer_addr),
            secrets=secrets,
            clusters=frozenset(clusters),
            main_bytes_max=max(defaults.main_bytes_max, frame_bytes_max(largest)),
            bulk_bytes_max=max(defaults.bulk_bytes_max, frame_bytes_max(largest)),
            mutual_tls=certificates is not None,
        )
        peers = Peers(TcpNetwork(certificates), options, on_fault=self._faults.note)
        self._peers = peers
        address = await peers.start(listens=bool(cluster.join or config.peers))
        self._peer_address = config.peer_addr if address is None else str(address)

    async def wait_ready(self, tell_every_s: float = 10.0) -> bool:
        """Wait until every cluster is ready, then report SERVING; False if the stop was requested
        first.

        Args:
            tell_every_s: seconds between two lines of the log about a cluster that is not ready.
        """
        assert self._server is not None
        ready = asyncio.gather(*(self._wait_cluster(*each) for each in self._backends.items()))
        stop = asyncio.create_task(self._stop.wait(), name="watch for the stop while not ready")
        either: set[asyncio.Future[Any]] = {ready, stop}
        done: set[asyncio.Future[Any]] = set()
        while not done:
            for name, backend in self._backends.items():
                if name not in self._ready_clusters and backend.fault:
                    self._log_unready(name)
            done, _ = await asyncio.wait(either, timeout=tell_every_s, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ready.done():
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            return False
        self._ready = self._was_ready = True
        self._tell_health()
        return True

    async def _wait_cluster(self, name: str, backend: Backend) -> None:
        await backend.wait_ready()
        self._ready_clusters.add(name)
        node = self._nodes.get(name)
        if node is None:
            brokers = ", ".join(self._config.proxies[name].kafka.seed_peers)
            log.info("a Kafka cluster can be used", cluster=name, brokers=brokers)
        else:
            log.info(
                "a cluster can be used",
                cluster=name,
                directory=str(self._directory(name).absolute()),
                found="a new directory" if name in self._new else "the directory of an earlier start",
                cluster_id=node.cluster_id.hex(),
                node=node.node_id,
                start=node.incarnation,
                topics=len(node.metadata.topics),
            )
            self._warn_of_lost_directory(name, node)
        self._tell_health()

    def _warn_of_lost_directory(self, name: str, node: Node) -> None:
        """A node without its directory finds its cluster by nothing but the join list."""
        config = self._config
        own = config.advertised.peer or config.peer_addr
        if len(node.metadata.registered) > 1 and set(config.cluster.join) <= {own}:
            log.warning(
                "cluster.join names no other node: started with an empty directory, this node would make "
                "a cluster of its own",
                cluster=name,
            )

    def _readiness_changed(self, name: str) -> None:
        """A cluster became ready or unready."""
        if name not in self._ready_clusters:
            return
        if reason := self._backends[name].why_left:
            self._proxies[name].leave_cluster(reason)
        if self._backends[name].fault:
            self._log_unready(name)
        elif self._is_kafka(name):
            log.info("a Kafka cluster can be reached again", cluster=name)
        else:
            log.info("ready again", cluster=name)
        self._tell_health()

    def _log_unready(self, name: str) -> None:
        reason = self._backends[name].fault
        if self._is_kafka(name):
            log.warning("not ready: a Kafka cluster cannot be reached", cluster=name, reason=reason)
        else:
            log.warning(f"not ready: {reason}", cluster=name)

    def _is_kafka(self, name: str) -> bool:
        return self._config.proxies[name].kind == "kafka"

    def _is_ready(self, cluster: str) -> bool:
        return cluster in self._ready_clusters and not self._backends[cluster].fault

    def _tell_health(self) -> None:
        assert self._grpc is not None
        clusters = {name: self._is_ready(name) for name in self._backends}
        self._grpc.set_health(serving=self._ready and all(clusters.values()), clusters=clusters)

    # --- health -----------------------------------------------------------------------------------

    def live(self) -> dict[str, str]:
        """See `HealthChecks`."""
        return {"faults": "" if self._fault is None else str(self._fault) or repr(self._fault)}

    def ready(self) -> dict[str, str]:
        """See `HealthChecks`."""
        drain = "the daemon is being stopped" if self._draining else ""
        return {**self.live(), "drain": drain, **self._clusters_ready()}

    def started(self) -> dict[str, str]:
        """See `HealthChecks`."""
        checks = self._clusters_ready()
        return dict.fromkeys(checks, "") if self._was_ready else checks

    def _clusters_ready(self) -> dict[str, str]:
        return {f"cluster:{name}": self._why_unready(name) for name in self._backends}

    def _why_unready(self, cluster: str) -> str:
        if self._draining or self._is_ready(cluster):
            return ""
        if cluster not in self._proxies:
            return "recovering"
        return self._backends[cluster].fault or "it has not started yet"

    async def wait(self) -> None:
        """Serve until `request_stop` or a fault.

        Raises:
            DaemonFault: storage or a state machine broke.
            ConfigError: others have joined this node, and it may not listen to them.
        """
        await self._stop.wait()
        self._raise_fault()

    def request_stop(self) -> None:
        """End `wait`."""
        self._stop.set()

    async def drain_and_stop(self) -> None:
        """Drain and stop, within `shutdown_timeout` plus a few seconds.

        Raises:
            DaemonFault: it took longer, or a fault occurred meanwhile. Whatever was acknowledged is
                safe; committed offsets may be behind.
        """
        limit = self._config.shutdown_timeout + _STOP_S
        drain = asyncio.create_task(self._drain_and_stop(), name="drain")
        report = asyncio.create_task(
            report_drain(self._drain_waits, self._config.shutdown_timeout, _STOP_S), name="report the drain"
        )
        broken = asyncio.create_task(self._broken.wait(), name="watch for faults while draining")
        ended, _ = await asyncio.wait({drain, broken}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, broken, report):
            task.cancel()
        await asyncio.wait({drain, broken, report}, timeout=_CANCEL_S)
        self._raise_fault()
        if drain not in ended:
            raise DaemonFault(f"could not stop in good order within {limit:g} seconds")
        await drain

    def _drain_waits(self) -> list[str]:
        several = len(self._proxies) > 1
        return [
            f"{what} of cluster {name}" if several else what
            for name, proxy in self._proxies.items()
            for what in proxy.drain_waits()
        ]

    def _raise_fault(self) -> None:
        if isinstance(self._fault, ConfigError):
            raise self._fault
        if self._fault is not None:
            raise DaemonFault(str(self._fault) or repr(self._fault)) from self._fault

    async def _drain_and_stop(self) -> None:
        assert self._server is not None
        log.info("draining")
        self._ready, self._draining = False, True
        self._ready_clusters.clear()
        self._tell_health()
        proxies = list(self._proxies.values())
        for proxy in proxies:
            proxy.begin_drain()
        self._server.begin_drain()
        in_doubt = await asyncio.gather(*(proxy.drain(self._config.shutdown_timeout) for proxy in proxies))
        await self._server.stop(grace=1.0)
        await self._notes.cancel_all()
        for proxy in proxies:
            await proxy.stop()
        if self._peers is not None:
            await self._peers.stop()
        if self._management is not None:
            await self._management.stop()
        if any(in_doubt):
            raise DaemonFault(f"stopped with {sum(in_doubt)} messages that are not known to be written")
        log.info("stopped")

    def _proxy(self, name: str, config: ProxyConfig) -> Proxy:
        backend = self._backends[name] = self._make_backend[config.kind](name, config)
        backend.watch(partial(self._readiness_changed, name))
        return Proxy(
            name,
            config,
            backend,
            client_id=effective_client_id(config.client_id),
            clock=self._times.get(name, self._clock),
            rng=Random(),
            on_fault=self._faults.note,
            client_share_percent=self._config.client_share_percent,
        )

    def _kafka_backend(self, name: str, config: ProxyConfig) -> Backend:
        # Late: a daemon with embedded clusters only does without Kafka's client.
        from pixy.backend.kafka import KafkaBackend, KafkaOptions, NeighbourOptions, Neighbours, StagingPlace

        directory = Path(self._config.data_dir) / name / "kafka"
        client_id = effective_client_id(config.client_id)
        neighbours = None
        if self._config.peers and self._peers is not None:
            options = NeighbourOptions(
                name,
                peers=tuple(Address.parse(each.lower()) for each in self._config.peers),
                address=Address.parse((self._config.advertised.peer or self._peer_address).lower()),
                client_id=client_id,
                started_ms=self._clock.wall_ms(),
                process=os.urandom(8),
                version=__version__,
            )
            neighbours = Neighbours(options, self._peers.channel)
        return KafkaBackend(
            KafkaOptions.from_config(config, client_id),
            StagingPlace(
                RealDisk(),
                directory,
                ThreadWorker,
                self._clock,
                config.staging,
                self._config.client_share_percent,
            ),
            self._faults.note,
            on_storage_fault=self.on_fault,
            neighbours=neighbours,
        )

    def _embedded_backend(self, name: str, config: ProxyConfig) -> Backend:
        if not (self._directory(name) / "identity").exists():
            self._new.add(name)
        options = NodeOptions(
            directory=self._directory(name),
            journal=config.journal,
            storage=config.storage,
            random_bytes=os.urandom,
            worker=ThreadWorker,
            staging=config.staging,
            limits=config.limits,
            cluster=ClusterOptions(
                name,
                join=tuple(sorted(map(Address.parse, self._config.cluster.join))),
                address=self._config.advertised.peer or self._peer_address,
                grpc_address=self._config.advertised.grpc or self._config.grpc_addr,
                rack=self._config.cluster.rack,
                version=__version__,
                max_message_bytes=config.producer.max_message_bytes,
                replace_after_s=self._config.cluster.replace_after or math.inf,
            ),
        )
        open_channel = None if self._peers is None else self._peers.channel
        disk = RealDisk()
        node = Node(disk, self._clock, options, self.on_fault, open_channel)
        self._nodes[name] = node
        node.troubles = partial(self._troubles, options.directory)
        node.disk = partial(disk_space, options.directory)
        noted_ms = noted_time(disk, options.directory)
        if noted_ms is not None:
            node.time.resume(noted_ms)
        self._times[name] = node.time
        return EmbeddedBackend(node, config.producer.timeout, config.consumer.rebalance_timeout)

    def _directory(self, name: str) -> Path:
        """Directory of a cluster."""
        return Path(self._config.data_dir) / name

    def _troubles(self, directory: Path) -> list[str]:
        """Troubles of this process that its nodes do not know of."""
        reached = [] if self._server is None else self._server.limits_reached
        limits = (
            [f"limits were reached within two minutes, see its log: {', '.join(reached)}"] if reached else []
        )
        return [*low_disk(directory), *limits]

    def counts(self) -> dict[str, int]:
        """Current numbers of tasks, connections and calls, and of what each cluster buffers for its
        callers.
        """
        counts = {"tasks": len(asyncio.all_tasks()), "bugs": self._faults.count}
        if self._server is not None:
            connections = self._server.connection_counters
            counts["connections"] = len(connections)
            for name in ("running", "request_bytes", "queued_bytes"):
                counts[name] = sum(getattr(connection, name) for connection in connections)
        for name, proxy in self._proxies.items():
            counts |= {f"{name}.{what}": count for what, count in proxy.counts().items()}
        return counts

    def reload_soon(self, read_again: ReadAgain, set_up_log: SetUpLog) -> None:
        """Use what has changed and can be used without a start, and say what cannot."""
        log.info("got a signal", signal="SIGHUP")
        self._tasks.spawn(self._reload(read_again, set_up_log), "read the configuration again")

    async def _reload(self, read_again: ReadAgain, set_up_log: SetUpLog) -> None:
        present = await asyncio.to_thread(maybe_read_again, read_again)
        if present is None:
            return
        set_up_log(present)
        if self._server is not None:
            self._server.maybe_reload()
        if self._kafka is not None:
            await self._kafka.maybe_reload()
        if self._management is not None:
            self._management.maybe_reload()
        say_used(self._config, present)

    def log_counts(self) -> None:
        """Log `counts`."""
        log.info("counts", **self.counts())

    def on_fault(self, error: BaseException) -> None:
        """Storage or a state machine broke: end `wait` and `drain_and_stop` with this error."""
        if self._fault is None:
            self._fault = error
            log.critical("broken beyond repair, stopping at once", exc_info=error)
            self._broken.set()
            self._stop.set()

    def on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Exception handler of the event loop, for exceptions that nobody caught."""
        error: BaseException | None = context.get("exception")
        ours = "" if error is None else _outermost_module(error)
        if error is None or not ours:
            loop.default_exception_handler(context)
        elif "handle" in context and ours.startswith(_MENDED_BY_RESTART):
            # The callback was interrupted, so their state may be inconsistent.
            self.on_fault(error)
        else:
            self._faults.note(error)


def _outermost_module(error: BaseException) -> str:
    """The outermost module of pixy in an exception's traceback, empty if there is none; the module
    that runs the steps of others only if there is no other.
    """
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    ours = [module for module in modules if module.startswith("pixy.")]
    return next((module for module in ours if module != _STEPS), ours[0] if ours else "")


async def _run(config: Config, on_ready: OnReady, read_again: ReadAgain, set_up_log: SetUpLog) -> None:
    _log_start(config)
    daemon = Daemon(config)
    loop = asyncio.get_running_loop()
    for warning in (*config.warnings, *find_unverified(config)):
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
    loop.add_signal_handler(signal.SIGHUP, daemon.reload_soon, read_again, set_up_log)
    addresses = await daemon.start()
    log.info("listening", **{name.replace("-", "_"): address for name, address in addresses.items()})
    settle_interpreter()
    collections = QuietCollections(loop)
    if await daemon.wait_ready():
        on_ready(addresses)
    await daemon.wait()
    collections.stop()
    await daemon.drain_and_stop()


def _log_start(config: Config) -> None:
    log.info(
        "starting",
        version=__version__,
        data_dir=str(Path(config.data_dir).absolute()),
        clusters=", ".join(f"{name} ({proxy.kind})" for name, proxy in config.proxies.items()),
    )


def run(config: Config, on_ready: OnReady, read_again: ReadAgain, set_up_log: SetUpLog) -> None:
    """Run a daemon until it is told to stop.

    Args:
        on_ready: called with the addresses by listener name.
        read_again: reads the configuration as it is at that time.
        set_up_log: has the log written by the options of a configuration.

    Raises:
        ConfigError: a file that the configuration names cannot be used.
        StartError: it cannot start; the message is for the operator.
        CorruptData: stored data is damaged.
        DaemonFault: a fault that only a restart repairs. Unanswered requests may or may not be
            written.
    """
    check_files(config)
    prepare_interpreter()
    _raise_file_limit()
    try:
        import uvloop

        uvloop.run(_run(config, on_ready, read_again, set_up_log))
    except ImportError:
        asyncio.run(_run(config, on_ready, read_again, set_up_log))


def prepare_interpreter() -> None:
    """Tune the interpreter for low latency of the event loop."""
    run_soon()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)


def settle_interpreter() -> None:
    """Exempt all existing objects from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()


def _within_file_limit(config: Config) -> Config:
    """The configuration, with `grpc.max_connections` lowered to what the limit of open files allows
    beside storage.
    """
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
    """Raise the limit of open files: each connection and each partition being written takes a
    descriptor.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
