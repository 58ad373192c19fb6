"""Connection options of the daemon: plain values, pickled into every task."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files on every machine that runs tasks. None: the system's authorities, no
    certificate, the address's name.
    """

    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Addresses, cluster and timeouts of a daemon.

    Args:
        addresses: each serves the same clusters; see `addresses`. None is there twice.
        cluster: name of the cluster, empty for the default one.
        timeout_seconds: deadline of a call, retries included.
        publish_timeout_seconds: deadline of a publication, with attempts of up to `timeout_seconds`
            each.
        tls: None for plaintext connections.
    """

    addresses: tuple[str, ...]
    cluster: str = ""
    timeout_seconds: float = 30.0
    publish_timeout_seconds: float = 120.0
    tls: Tls | None = None
