"""The management listener."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from pixy.clock import Clock
from pixy.config import Config, is_every_interface, is_socket_path, split_address
from pixy.management.cluster_samples import ClusterParts, ClusterSamples
from pixy.management.loop_lag import LoopLag
from pixy.management.peer_samples import add_traffic
from pixy.management.process import add_process
from pixy.management.routes import HealthChecks, ManagementRoutes
from pixy.management.server_samples import add_kafka_apis, add_memory, add_methods, add_routes, add_server
from pixy.metrics import Registry
from pixy.peers import Peers
from pixy.rpc import Method
from pixy.serving import Server, ServerOptions
from pixy.web import Route, Router, WebFactory, WebOptions
from pixy.wire import ServedApi

_CONNECTIONS_MAX = 64
_BUFFER_BYTES = 16 << 20
_CALLS_MAX = 256
_GRACE_S = 0.5


class Observed(NamedTuple):
    """The daemon, as the listener shows it.

    Attributes:
        health: its health.
        clusters: of it.
        server: for clients.
        peers: other nodes, None without any.
        methods: of gRPC.
        routes: of HTTP.
        kafka_apis: of Kafka's protocol.
        bugs: number of unexpected exceptions.
    """

    health: HealthChecks
    clusters: Sequence[ClusterParts]
    server: Server
    peers: Peers | None
    methods: Collection[Method]
    routes: Collection[Route]
    kafka_apis: Collection[ServedApi]
    bugs: Callable[[], int]


class ManagementServer:
    """The management listener of a daemon in the running event loop.

    Args:
        config: of the daemon.
        clock: the one source of time of its connections.
        on_fault: called with each bug.
        observed: the daemon.
    """

    def __init__(
        self, config: Config, clock: Clock, on_fault: Callable[[BaseException], None], observed: Observed
    ) -> None:
        self._config = config
        self._observed = observed
        self._started_s = clock.wall_ms() / 1000
        self._lag = LoopLag()
        self._clusters = [ClusterSamples(parts, config.management) for parts in observed.clusters]
        options = ServerOptions(
            buffer_bytes=_BUFFER_BYTES,
            connections_max=_CONNECTIONS_MAX,
            calls_max=_CALLS_MAX,
            client_share_percent=config.client_share_percent,
            handshake_s=config.grpc.handshake_timeout,
        )
        self._server = Server(options, clock, on_fault)
        routes = ManagementRoutes(observed.health, self._collect, debug=config.management.debug)
        hosts = WebOptions(hosts=_hosts(config))
        self._factory = WebFactory(self._server.environment, Router(routes.routes()), hosts)

    async def start(self) -> str:
        """Listen; returns the address with the real port.

        Raises:
            StartError: the address cannot be used.
        """
        address = self._config.management_addr
        if is_socket_path(address):
            return await self._server.listen_unix(address, self._factory)
        tls = self._config.tls if self._config.management.tls else None
        return await self._server.listen(address, self._factory, tls, "management_addr")

    def maybe_reload(self) -> None:
        """Use certificates that have changed."""
        self._server.maybe_reload()

    async def stop(self) -> None:
        """Close everything."""
        self._lag.stop()
        await self._server.stop(_GRACE_S)

    async def _collect(self) -> Registry:
        """Samples of a scrape."""
        registry = Registry()
        observed = self._observed
        add_methods(registry, observed.methods)
        add_routes(registry, observed.routes)
        add_kafka_apis(registry, observed.kafka_apis)
        add_memory(registry, observed.server, [parts.proxy for parts in observed.clusters])
        registry.histogram("pixy_loop_lag_seconds", self._lag.seconds)
        registry.number("pixy_bugs_total", observed.bugs)
        if observed.peers is not None:
            add_traffic(registry, observed.peers.traffic())
        await add_server(registry, observed.server)
        for cluster in self._clusters:
            await cluster.add(registry)
        await add_process(registry, self._started_s)
        return registry


def _hosts(config: Config) -> frozenset[str]:
    """Names that Host may have."""
    address = config.management_addr
    own = set() if is_socket_path(address) or is_every_interface(address) else {split_address(address)[0]}
    return frozenset(name.lower() for name in {"localhost", *own, *config.management.allowed_hosts})
