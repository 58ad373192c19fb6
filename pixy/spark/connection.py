"""Where the daemon is and how it is reached: plain values that are pickled into every task."""

from dataclasses import dataclass

__all__ = ["ConnectionOptions", "Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files, on every machine that has a task; None: the system's authorities, no certificate, the address's name."""

    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """A daemon.

    Args:
        addresses: tried in turn; all are doors to the same clusters.
        cluster: name of the cluster, empty for the default one.
        timeout_seconds: how long a call is tried before it fails.
        publish_timeout_seconds: how long a publication is, with attempts of up to `timeout_seconds` each.
        tls: None for connections in the clear.
    """

    addresses: tuple[str, ...]
    cluster: str = ""
    timeout_seconds: float = 30.0
    publish_timeout_seconds: float = 120.0
    tls: Tls | None = None
