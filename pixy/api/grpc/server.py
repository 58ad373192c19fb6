"""The gRPC server: listens, serves `KafkaPixy` and `Topics`, tells of health, answers reflection.

Health follows the daemon's life: NOT_SERVING until every cluster is ready and from the first moment of a drain on, for the whole
server ("") and for each of the two services.
"""

import os
import socket
import ssl
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pixy.api.grpc.kafkapixy import KafkaPixyService
from pixy.api.grpc.topics import TopicsService
from pixy.clock import Clock
from pixy.config import Config, TlsConfig, is_socket_path, split_address
from pixy.errors import StartError
from pixy.proto import kafkapixy_pb2, pixy_topics_pb2
from pixy.proxy import Proxy

__all__ = ["GrpcServer"]

_KAFKA_PIXY = kafkapixy_pb2.DESCRIPTOR.services_by_name["KafkaPixy"].full_name
_TOPICS = pixy_topics_pb2.DESCRIPTOR.services_by_name["Topics"].full_name
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_ARRIVED_CALLS_MAX = 65_536
"""Calls that have arrived and that the event loop has not looked at yet; gRPC's own limits are 1000 and 3000, and a burst of
ten thousand polls exceeds them: it cancels calls at random then, with CANCELLED."""


class GrpcServer:
    """Serves all proxies of a daemon over gRPC.

    Args:
        config: addresses, limits and certificates.
        proxies: by the name of the cluster; the one named "" is the default.
        clock: what deadlines are measured on.
        on_fault: called with an exception that is a bug.
    """

    def __init__(
        self,
        config: Config,
        proxies: Mapping[str, Proxy],
        clock: Clock,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", config.grpc.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.server.max_pending_requests", _ARRIVED_CALLS_MAX),
                ("grpc.server.max_pending_requests_hard_limit", _ARRIVED_CALLS_MAX),
            ]
        )
        self._socket_paths: list[str] = []
        self._health = health.aio.HealthServicer()
        services = {
            _KAFKA_PIXY: KafkaPixyService(proxies, clock, on_fault).handlers(),
            _TOPICS: TopicsService(proxies, on_fault).handlers(),
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items()]
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            [*services, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )

    async def start(self) -> dict[str, str]:
        """Listen, with health NOT_SERVING.

        Returns:
            The addresses by name of the door, with the real port where the configured one was 0.

        Raises:
            StartError: an address cannot be used.
        """
        await self._set_health(_NOT_SERVING)
        addresses = {}
        if self._config.grpc_addr:
            addresses["grpc"] = self._listen(self._config.grpc_addr)
        if self._config.unix_addr:
            addresses["grpc-unix"] = self._listen_unix(self._config.unix_addr)
        await self._server.start()
        return addresses

    async def serve(self) -> None:
        """Tell everybody that requests are served."""
        await self._set_health(_SERVING)

    async def begin_drain(self) -> None:
        """Tell everybody to go elsewhere; requests are still answered."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float) -> None:
        """Let running calls finish for at most `grace` seconds, then close everything."""
        await self._server.stop(grace)
        for path in self._socket_paths:
            with suppress(FileNotFoundError):
                os.unlink(path)

    async def _set_health(self, status: int) -> None:
        for service in ("", _KAFKA_PIXY, _TOPICS):
            await self._health.set(service, status)

    def _listen(self, address: str) -> str:
        """Listen on host:port or on a unix socket; returns the address with the real port."""
        if is_socket_path(address):
            return self._listen_unix(address)
        host, port = split_address(address)
        host = host or "0.0.0.0"
        self._check_free(address, host, port)
        try:
            bound = self._bind(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise StartError(f"cannot listen on {address}: {error}") from error
        return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"

    def _check_free(self, address: str, host: str, port: int) -> None:
        """Learn why an address cannot be had, which grpc does not tell."""
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(target)
                probe.listen()
        except OSError as error:
            raise StartError(f"cannot listen on {address}: {error.strerror or error}") from error

    def _listen_unix(self, path: str) -> str:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise StartError(f"cannot listen on {path}: it exists and is not a socket")
            os.unlink(path)
        try:
            self._server.add_insecure_port(f"unix:{Path(path).absolute()}")
        except RuntimeError as error:
            raise StartError(f"cannot listen on {path}: {error}") from error
        self._socket_paths.append(path)
        return f"unix:{path}"

    def _bind(self, target: str) -> int:
        tls = self._config.tls
        if not tls.certificate_path:
            return self._server.add_insecure_port(target)
        check_certificate(tls)
        key, certificate = Path(tls.key_path).read_bytes(), Path(tls.certificate_path).read_bytes()
        return self._server.add_secure_port(target, grpc.ssl_server_credentials([(key, certificate)]))


def check_certificate(tls: TlsConfig) -> None:
    """Prove that certificate and key can be read and belong together.

    Raises:
        StartError: what is wrong with them.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate_path, tls.key_path)
    except (ssl.SSLError, OSError) as error:
        raise StartError(
            f"tls.certificate_path {tls.certificate_path} and tls.key_path {tls.key_path} cannot be used: {error}"
        ) from error
