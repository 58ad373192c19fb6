"""HTTP/1.1 for any routes, as a protocol of a server's listeners."""

from pixy.serving import Environment, Link
from pixy.web.connection import WebConnection
from pixy.web.environment import WebEnvironment
from pixy.web.options import WebOptions
from pixy.web.router import Router

_HTTP2 = b"PRI "
"""First bytes of HTTP/2, and of no request of HTTP/1.1."""


class WebFactory:
    """Opens HTTP connections, see `ChoosableFactory`.

    Args:
        environment: of the server.
        router: routes.
        options: limits.
    """

    alpn = ("http/1.1", "")

    def __init__(self, environment: Environment, router: Router, options: WebOptions) -> None:
        self._environment = WebEnvironment(environment, router, options)

    def claims(self, begin: bytes) -> bool | None:
        """See `ChoosableFactory`. Everything but HTTP/2 is for HTTP/1.1 to answer."""
        if begin.startswith(_HTTP2):
            return False
        return None if _HTTP2.startswith(begin) else True

    def open(self, link: Link, accepted_at: float) -> WebConnection:
        """See `ProtocolFactory`."""
        return WebConnection(self._environment, link, accepted_at)

    def close(self) -> None:
        """See `ProtocolFactory`."""
