"""gRPC for any services, as a protocol of a server's listeners."""

from collections.abc import Collection, Iterable

from pixy.http2 import PREFACE
from pixy.rpc.call_environment import CallEnvironment, GrpcOptions
from pixy.rpc.connection import GrpcConnection
from pixy.rpc.interception import Interceptor, principal_of_certificate
from pixy.rpc.methods import Method, Service, method_table
from pixy.serving import Environment, Link


class GrpcFactory:
    """Opens gRPC connections, see `ChoosableFactory`.

    Args:
        environment: of the server.
        services: with their handlers.
        options: limits.
        intercept: sees each call before its handler, see `interception`.
    """

    alpn = ("h2",)

    def __init__(
        self,
        environment: Environment,
        services: Iterable[Service],
        options: GrpcOptions,
        intercept: Interceptor = principal_of_certificate,
    ) -> None:
        self._environment = CallEnvironment(environment, method_table(services), options, intercept)

    @property
    def methods(self) -> Collection[Method]:
        """The methods, with the counts of their calls."""
        return self._environment.methods.values()

    def claims(self, begin: bytes) -> bool | None:
        """See `ChoosableFactory`."""
        if begin.startswith(PREFACE):
            return True
        return None if PREFACE.startswith(begin) else False

    def open(self, link: Link, accepted_at: float) -> GrpcConnection:
        """See `ProtocolFactory`."""
        return GrpcConnection(self._environment, link, accepted_at)

    def close(self) -> None:
        """See `ProtocolFactory`."""
        self._environment.deadlines.close()
        self._environment.strangers.stop()
