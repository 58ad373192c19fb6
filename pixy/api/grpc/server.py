"""gRPC server of a daemon: `KafkaPixy`, `Topics`, `Log`, `Cluster`, health and reflection.

The daemon sets the health, which is the same for the server ("") and each of the four services,
another one for each cluster ("cluster:NAME"), and NOT_SERVING at first. Requests are answered
regardless of it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pixy.api.grpc.cluster import ClusterService
from pixy.api.grpc.kafkapixy import KafkaPixyService
from pixy.api.grpc.log import LogService
from pixy.api.grpc.options import grpc_options, server_options
from pixy.api.grpc.topics import TopicsService
from pixy.clock import Clock
from pixy.config import Config, is_socket_path
from pixy.proxy import Proxy
from pixy.rpc import HEALTH, GrpcFactory, Health, Reflection
from pixy.serving import ConnectionCounters, Counters, Server

__all__ = ["GrpcServer"]


class GrpcServer:
    """Serves all clusters of a daemon over gRPC.

    Args:
        config: addresses, limits and certificates.
        proxies: by name of the cluster; "" is the default cluster.
        clock: on which deadlines are measured.
        on_fault: called with each bug, which has ended a call or a connection.
    """

    def __init__(
        self,
        config: Config,
        proxies: Mapping[str, Proxy],
        clock: Clock,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._config = config
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
        self._server = Server(server_options(config.grpc, config.client_share_percent), clock, on_fault)
        self._factory = GrpcFactory(self._server.environment, services, grpc_options(config.grpc))

    @property
    def counters(self) -> Counters:
        """Counts since the start."""
        return self._server.counters

    @property
    def connections(self) -> list[ConnectionCounters]:
        """Counts of each open connection."""
        return self._server.connection_counters

    @property
    def limits_reached(self) -> list[str]:
        """Limits that clients have reached in the last minute or two, by option."""
        return self._server.limits_reached

    async def start(self) -> dict[str, str]:
        """Listen, with health NOT_SERVING.

        Returns:
            The addresses by name of the listener, with the real ports.

        Raises:
            StartError: an address cannot be used; nothing is left open.
        """
        addresses = {}
        try:
            if self._config.grpc_addr:
                addresses["grpc"] = await self._listen(self._config.grpc_addr)
            if self._config.unix_addr:
                addresses["grpc-unix"] = await self._server.listen_unix(self._config.unix_addr, self._factory)
        except BaseException:
            await self._server.stop(0)
            raise
        return addresses

    def set_health(self, *, serving: bool, clusters: Mapping[str, bool] = MappingProxyType({})) -> None:
        """Set the health of the server and of all its services, and that of clusters by name."""
        self._health.set_all(serving, {_part(name): each for name, each in clusters.items()})

    def maybe_reload(self) -> None:
        """Use certificates that have changed."""
        self._server.maybe_reload()

    def begin_drain(self) -> None:
        """See `Server.begin_drain`."""
        self._server.begin_drain()

    async def stop(self, grace: float) -> None:
        """Let running calls finish for at most `grace` seconds, then close everything."""
        await self._server.stop(grace)

    async def _listen(self, address: str) -> str:
        if is_socket_path(address):
            return await self._server.listen_unix(address, self._factory)
        tls = self._config.tls
        return await self._server.listen(address, self._factory, tls if tls.certificate_path else None)


def _part(cluster: str) -> str:
    """Name of a cluster's health."""
    return f"cluster:{cluster}"
