"""Limits of HTTP's connections, beside those of the server."""

from dataclasses import dataclass, field

from pixy.http1 import Http1Options


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Options of a `WebFactory`.

    Attributes:
        http1: of each connection.
        output_bytes: answers of a connection that its client has not read; one with more is closed.
        hosts: names without port that Host may have beside any IP address, in lower case; None for
            any. They keep a web page from reaching a server of its user's machine under a name of
            its own (DNS rebinding), which an address cannot be.
    """

    http1: Http1Options = field(default_factory=Http1Options)
    output_bytes: int = 8 << 20
    hosts: frozenset[str] | None = None
