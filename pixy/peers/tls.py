"""Certificates of mutual TLS between peers.

Both sides present a certificate of the same authority and verify that of the other. Host names are
not compared: nodes are addressed by what the metadata say, and identified by id and secret in the
handshake behind TLS. So the authority has to be one for this cluster alone. A certificate may name
the node that it is for, as a URI `pixy:CLUSTER:ID` among its subject alternative names, with the
cluster's key under `proxies` or its id in hexadecimal digits: then it is good for no other.

The road not taken: certificates whose names must match the address. Every node that changes its
address would need a new certificate, and a certificate for all addresses proves no more.
"""

import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from pixy.config import check_regular
from pixy.errors import StartError
from pixy.peers.hello import Hello
from pixy.peers.texts import shown

log = structlog.get_logger(__name__)


_SCHEME = "pixy:"


def why_of_another_node(certificate: Mapping[str, Any], hello: Hello) -> str | None:
    """Reason to refuse a node by the certificate that it has presented, None if there is none.

    Args:
        certificate: as `ssl.SSLSocket.getpeercert` has it; empty without TLS.
        hello: the node as it describes itself.
    """
    named = [
        name
        for kind, name in certificate.get("subjectAltName", ())
        if kind == "URI" and name.startswith(_SCHEME)
    ]
    if not named or not hello.node_id:
        return None
    own = {f"{_SCHEME}{cluster}:{hello.node_id}" for cluster in (hello.cluster, hello.cluster_id.hex())}
    if own.intersection(named):
        return None
    return f"{hello} has the certificate of another node: it is for {shown(', '.join(named))}"


class PeerCertificates:
    """Certificates on disk, loaded again when they change.

    Args:
        cert_file: the node's certificate and those of intermediate authorities.
        key_file: its key.
        ca_file: certificates of the cluster's authority.

    Raises:
        StartError: a file cannot be used, or they do not belong together.
    """

    def __init__(self, cert_file: str | Path, key_file: str | Path, ca_file: str | Path) -> None:
        self._cert_file, self._key_file, self._ca_file = map(str, (cert_file, key_file, ca_file))
        self._seen = self._versions()
        self._server, self._client = self._load()

    def server(self) -> ssl.SSLContext:
        """Context of the listening socket; later connections use certificates that have changed."""
        return self._server

    def client(self) -> ssl.SSLContext:
        """Context of a connection to a peer."""
        return self._client

    def maybe_reload(self) -> bool:
        """Use files that have changed. The old ones stay if the new ones cannot be used.

        Returns:
            True if the files have changed and are used.
        """
        seen = self._versions()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            # New contexts, since those that exist would go on to trust former authorities.
            self._server, self._client = self._load()
        except StartError as error:
            log.error(
                "certificates of peers have changed and cannot be used; the old ones stay", reason=str(error)
            )
            return False
        log.info("certificates of peers have changed and are used", file=self._cert_file)
        return True

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server, client = (
            ssl.SSLContext(protocol) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        client.check_hostname = False
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                check_regular(self._cert_file)
                check_regular(self._key_file)
                context.load_cert_chain(self._cert_file, self._key_file)
            except (ssl.SSLError, OSError) as error:
                raise StartError(
                    f"cluster.tls.cert_file {self._cert_file} and key_file {self._key_file} cannot be used: {error}"
                ) from error
            try:
                check_regular(self._ca_file)
                context.load_verify_locations(self._ca_file)
            except (ssl.SSLError, OSError) as error:
                raise StartError(f"cluster.tls.ca_file {self._ca_file} cannot be used: {error}") from error
        return server, client

    def _versions(self) -> list[tuple[int, int, int]]:
        versions = []
        for path in (self._cert_file, self._key_file, self._ca_file):
            with suppress(OSError):
                status = os.stat(path)
                versions.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return versions
