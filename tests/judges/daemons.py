"""Daemons under test, in plaintext and with TLS, and checks of their logs.

A server can satisfy every judge and still have failed internally, because the gRPC server contains
a fault in one connection and logs it. So the final check is always that of the log.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import require
from tests.integration.daemon import Daemon, proxy_config

CONFIG = proxy_config(client_id="judges", default_partitions=1)
_FAULTS = ("Traceback", "[error", "[critical")


class Certificate:
    """A self-signed certificate for `localhost` and 127.0.0.1.

    Attributes:
        path, key_path: PEM files.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "certificate.pem"
        self.key_path = folder / "key.pem"


def make_certificate(folder: Path) -> Certificate:
    """Create a certificate in this folder."""
    openssl = require("openssl", "apt-get install openssl")
    certificate = Certificate(folder)
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(certificate.key_path), "-out", str(certificate.path)]
    subprocess.run([openssl, "req", *kind, *names, *files], check=True, capture_output=True)
    return certificate


@contextmanager
def judged_daemon(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    certificate: Certificate | None = None,
    program: Sequence[str] = ("-m", "pixy"),
) -> Iterator[Daemon]:
    """A running daemon, with TLS if it has a certificate.

    It must shut down cleanly, with no fault in its log.
    """
    options = {**CONFIG, **(config or {})}
    if certificate is not None:
        options["tls"] = {
            "certificate_path": str(certificate.path),
            "key_path": str(certificate.key_path),
        }
    with Daemon(folder, options, program) as daemon:
        yield daemon
        daemon.stop()
        check_log(daemon)


def check_log(daemon: Daemon) -> None:
    """Assert that a daemon has logged no fault so far."""
    log = daemon.log()
    assert not any(fault in log for fault in _FAULTS), f"the daemon logged a fault:\n{log}"
