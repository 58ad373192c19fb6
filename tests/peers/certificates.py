"""Certificates of authorities and nodes, made with openssl."""

import subprocess
from pathlib import Path

from tests.conftest import require

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def make_authority(folder: Path, name: str) -> None:
    """Make `name.pem` and `name.key` of an authority."""
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    _openssl("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", *files)


def make_node_certificate(folder: Path, name: str, authority: str, uri: str = "") -> None:
    """Make `name.pem` and `name.key` of a node, signed by an authority. It names no host.

    Args:
        uri: subject alternative name, empty for none.
    """
    request = str(folder / f"{name}.csr")
    _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", str(folder / f"{name}.key"), "-out", request)
    signer = ["-CA", str(folder / f"{authority}.pem"), "-CAkey", str(folder / f"{authority}.key")]
    files = ["-in", request, "-out", str(folder / f"{name}.pem")]
    if uri:
        extensions = folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=URI:{uri}")
        files += ["-extfile", str(extensions)]
    _openssl("x509", "-req", *signer, "-CAcreateserial", "-days", "2", *files)


def _openssl(*arguments: str) -> None:
    openssl = require("openssl", "apt-get install openssl")
    subprocess.run([openssl, *arguments], check=True, capture_output=True)
