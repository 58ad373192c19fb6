"""Certificates for tests, made by openssl."""

import subprocess
from pathlib import Path

from tests.conftest import require


def make_certificate(folder: Path, name: str) -> None:
    """Make a self-signed certificate with its key."""
    openssl = require("openssl", "apt-get install openssl")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
