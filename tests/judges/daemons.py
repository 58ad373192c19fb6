"""What the judges are let loose on: daemons in the clear and behind TLS, and what their logs must not have.

A server can answer every judge right and still have failed inside, because the door keeps a fault from the other connections
and logs it. So the last thing that is looked at is always the log.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import require
from tests.integration.daemon import Daemon, proxy_config

__all__ = ["Certificate", "check_log", "judged_daemon", "make_certificate"]

CONFIG = proxy_config(client_id="judges", default_partitions=1)
_FAULTS = ("Traceback", "[error", "[critical")


class Certificate:
    """Of `localhost` and 127.0.0.1, signed by itself.

    Attributes:
        path, key_path: PEM files.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "certificate.pem"
        self.key_path = folder / "key.pem"


def make_certificate(folder: Path) -> Certificate:
    """A new one in this folder."""
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
    """A running daemon, behind TLS if it has a certificate. In the end it must stop well, with no fault in its log."""
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
    """A daemon has met no fault so far."""
    log = daemon.log()
    assert not any(fault in log for fault in _FAULTS), f"the daemon logged a fault:\n{log}"
