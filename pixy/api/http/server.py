"""HTTP of a daemon: kafka-pixy's API, and `/v1`.

`tcp_addr` speaks HTTP alone. On `unix_addr`, which is the gRPC server's, a connection that begins
as HTTP/2 does is gRPC, any other one HTTP.
"""

import os
from collections.abc import Mapping
from random import Random

import structlog

from pixy.api.http.kafka_pixy import KafkaPixyRoutes
from pixy.api.http.v1 import PROBLEM, V1Routes
from pixy.config import Config, GrpcConfig, is_socket_path
from pixy.errors import StartError
from pixy.http1 import Http1Options
from pixy.proxy import Proxy
from pixy.serving import Server
from pixy.web import Router, WebFactory, WebOptions

log = structlog.get_logger(__name__)

_IDLE_S = 120.0
_FRAMING_BYTES = 64 << 10


def web_options(config: GrpcConfig, hosts: frozenset[str] | None = None) -> WebOptions:
    """Limits of HTTP's connections by a configuration, the times of which are those of gRPC.

    Args:
        hosts: see `WebOptions`.
    """
    times = Http1Options(
        head_s=config.handshake_timeout, body_s=config.request_timeout, idle_s=config.idle_timeout or _IDLE_S
    )
    return WebOptions(times, config.output_buffer_bytes, hosts)


def _records_bytes(message_bytes: int) -> int:
    """Largest body with records, for the largest message: it may be in base64."""
    return message_bytes * 4 // 3 + _FRAMING_BYTES


class HttpServer:
    """Serves all clusters of a daemon over HTTP.

    Args:
        config: addresses, limits and certificates.
        proxies: by name of the cluster; "" is the default cluster.
        server: of all connections of the daemon.

    Attributes:
        factory: of connections.
        routes: of all APIs, with the counts of their answers.
    """

    def __init__(self, config: Config, proxies: Mapping[str, Proxy], server: Server) -> None:
        self._config = config
        self._server = server
        largest = max(each.producer.max_message_bytes for each in config.proxies.values())
        kafka_pixy = KafkaPixyRoutes(proxies, largest, config.grpc.output_buffer_bytes)
        v1 = V1Routes(proxies, _records_bytes(largest), Random(os.urandom(8)))
        router = Router([*kafka_pixy.routes(), *v1.routes()], {"/v1/": PROBLEM})
        self.routes = router.routes
        self.factory = WebFactory(server.environment, router, web_options(config.grpc))

    async def start(self) -> dict[str, str]:
        """Listen.

        Returns:
            The addresses by name of the listener, with the real ports.

        Raises:
            StartError: an address cannot be used.
        """
        address = self._config.tcp_addr
        if not address:
            return {}
        if is_socket_path(address):
            return {"http": await self._server.listen_unix(address, self.factory)}
        tls = self._config.tls
        try:
            real = await self._server.listen(
                address, self.factory, tls if tls.certificate_path else None, "tcp_addr"
            )
        except StartError as error:
            if address != Config().tcp_addr:
                raise
            log.warning("there is no HTTP API: its default address is taken", reason=str(error))
            return {}
        return {"http": real}
