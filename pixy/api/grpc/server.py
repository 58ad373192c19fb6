"""gRPC of a daemon: `KafkaPixy`, `Topics`, `Log`, `Cluster`, health and reflection.

The daemon sets the health, which is the same for the server ("") and each of the four services,
another one for each cluster ("cluster:NAME"), and NOT_SERVING at first. Requests are answered
regardless of it.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from pixy.api.grpc.cluster import ClusterService
from pixy.api.grpc.kafkapixy import KafkaPixyService
from pixy.api.grpc.log import LogService
from pixy.api.grpc.options import grpc_options
from pixy.api.grpc.topics import TopicsService
from pixy.config import Config, is_socket_path
from pixy.proxy import Proxy
from pixy.rpc import HEALTH, GrpcFactory, Health, Method, Reflection
from pixy.serving import ChoosableFactory, ProtocolChoice, ProtocolFactory, Server

_MODES = {"user": 0o600, "group": 0o660, "all": 0o777}
"""Modes of the file of `unix_addr`, by `unix_access`."""


class GrpcServer:
    """Serves all clusters of a daemon over gRPC.

    Args:
        config: addresses, limits and certificates.
        proxies: by name of the cluster; "" is the default cluster.
        server: of all connections of the daemon.
        beside: another protocol for `unix_addr`, which has the connections that do not begin as
            HTTP/2 does.
    """

    def __init__(
        self,
        config: Config,
        proxies: Mapping[str, Proxy],
        server: Server,
        beside: ChoosableFactory | None = None,
    ) -> None:
        self._config = config
        self._server = server
        self._beside = beside
        services = [
            KafkaPixyService(proxies).service(),
            TopicsService(proxies).service(),
            LogService(proxies).service(),
            ClusterService(proxies).service(),
        ]
        clusters = [_part(name) for name in proxies if name]
        self._health = Health([*(service.descriptor.full_name for service in services), *clusters])
        reflection = Reflection([*(service.descriptor for service in services), HEALTH])
        services += [self._health.service(), *reflection.services()]
        self._factory = GrpcFactory(
            server.environment, services, grpc_options(config.grpc, _http1_hint(config.tcp_addr))
        )

    async def start(self) -> dict[str, str]:
        """Listen, with health NOT_SERVING.

        Returns:
            The addresses by name of the listener, with the real ports.

        Raises:
            StartError: an address cannot be used.
        """
        addresses = {}
        if self._config.grpc_addr:
            addresses["grpc"] = await self._listen(self._config.grpc_addr)
        if self._config.unix_addr:
            factory: ProtocolFactory = self._factory
            if self._beside is not None:
                factory = ProtocolChoice([self._beside, self._factory])
            mode = _MODES[self._config.unix_access]
            addresses["grpc-unix"] = await self._server.listen_unix(self._config.unix_addr, factory, mode)
        return addresses

    @property
    def methods(self) -> Collection[Method]:
        """All methods, with the counts of their calls."""
        return self._factory.methods

    def set_health(self, *, serving: bool, clusters: Mapping[str, bool] = MappingProxyType({})) -> None:
        """Set the health of the server and of all its services, and that of clusters by name."""
        self._health.set_all(serving, {_part(name): each for name, each in clusters.items()})

    async def _listen(self, address: str) -> str:
        if is_socket_path(address):
            return await self._server.listen_unix(address, self._factory)
        tls = self._config.tls
        return await self._server.listen(
            address, self._factory, tls if tls.certificate_path else None, "grpc_addr"
        )


def _part(cluster: str) -> str:
    """Name of a cluster's health."""
    return f"cluster:{cluster}"


def _http1_hint(tcp_addr: str) -> str:
    """The address for clients of HTTP/1. The host is left out: it may be an internal one."""
    if not tcp_addr:
        return "There is no HTTP/1.1 API: tcp_addr is not set."
    port = tcp_addr.rpartition(":")[2]
    if is_socket_path(tcp_addr) or port == "0":
        return "The HTTP API has an address of its own (tcp_addr)."
    return f"The HTTP API has a port of its own, {port} (tcp_addr)."
