"""Kafka's protocol for any APIs, as a protocol of a server's listeners."""

from pixy.serving import Environment, Link
from pixy.wire.apis import ApiTable
from pixy.wire.connection import WireConnection
from pixy.wire.environment import WireEnvironment
from pixy.wire.options import WireOptions


class WireFactory:
    """Opens connections that speak Kafka's protocol, see `ProtocolFactory`.

    Args:
        environment: of the server.
        table: the APIs.
        options: limits.
    """

    alpn = ("",)

    def __init__(self, environment: Environment, table: ApiTable, options: WireOptions) -> None:
        self._environment = WireEnvironment(environment, table, options)

    def open(self, link: Link, accepted_at: float) -> WireConnection:
        """See `ProtocolFactory`."""
        return WireConnection(self._environment, link, accepted_at)

    def close(self) -> None:
        """See `ProtocolFactory`."""
        self._environment.failed_logins.stop()
