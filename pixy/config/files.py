"""Files and directories that the configuration names: certificates, keys, tokens and users can be
read and fit, and the directory of data is not one of a cluster.

Whoever uses them reads them again, now or later; here their faults are found together, before
anything starts, and with the option that names the file.
"""

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from pixy.config.options import Config, ProxyConfig
from pixy.config.secret_file import check_regular, read_bounded, read_users
from pixy.errors import ConfigError


def check_files(config: Config) -> None:
    """Check all files.

    Raises:
        ConfigError: one line for each fault, with its option, the cluster in it, and the file.
    """
    faults = list(_faults(config))
    if faults:
        raise ConfigError("\n".join(faults))


def _faults(config: Config) -> Iterator[str]:
    if os.path.isfile(os.path.join(config.data_dir, "identity")):
        directory = Path(config.data_dir).absolute()
        yield (
            f"data_dir {config.data_dir} is the directory of one cluster, and would get another one in it: set data_dir to "
            f"the directory above, {directory.parent}, and name the cluster {directory.name} under proxies"
        )
    tls, peers = config.tls, config.cluster.tls
    if tls.certificate_path:
        yield from _chain("tls.certificate_path", tls.certificate_path, "tls.key_path", tls.key_path)
        yield from _authority("tls.client_ca_path", tls.client_ca_path)
    if config.sasl.users_file:
        yield from _users(config.sasl.users_file)
    if peers.cert_file:
        names = "cluster.tls.cert_file", "cluster.tls.key_file"
        yield from _chain(names[0], peers.cert_file, names[1], peers.key_file)
        yield from _authority("cluster.tls.ca_file", peers.ca_file)
    for name, proxy in config.proxies.items():
        if proxy.kind == "kafka":
            yield from _kafka(f"proxies.{name}", proxy)


def _users(path: str) -> Iterator[str]:
    try:
        read_users(path)
    except ValueError as error:
        yield f"sasl.users_file {error}"


def _kafka(path: str, proxy: ProxyConfig) -> Iterator[str]:
    kafka, sasl = proxy.kafka, proxy.net.sasl
    if kafka.tls and kafka.client_certificate_file:
        names = f"{path}.kafka.client_certificate_file", f"{path}.kafka.client_key_file"
        yield from _chain(names[0], kafka.client_certificate_file, names[1], kafka.client_key_file)
    if kafka.tls:
        yield from _authority(f"{path}.kafka.ca_certificate_file", kafka.ca_certificate_file)
    if sasl.enable and sasl.mechanism == "OAUTHBEARER":
        yield from _fault(
            f"{path}.net.sasl.token_path {sasl.token_path}", lambda: read_bounded(sasl.token_path)
        )


def _chain(name: str, certificate: str, key_name: str, key: str) -> Iterator[str]:
    """Fault of a certificate with its key, which may be in the same file."""
    named = f"{name} {certificate}"
    readable = list(_fault(named, lambda: check_regular(certificate)))
    if key:
        readable += _fault(f"{key_name} {key}", lambda: check_regular(key))
        named += f" and {key_name} {key}"
    yield from readable or _fault(named, lambda: _load_chain(certificate, key))


def _load_chain(certificate: str, key: str) -> None:
    # With a password, or else an encrypted key asks the terminal for one.
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key or None, password="")


def _authority(name: str, path: str) -> Iterator[str]:
    """Fault of a file with certificates of authorities."""

    def load() -> None:
        check_regular(path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(path)
        if not context.cert_store_stats()["x509"]:
            raise ValueError("it has no certificate")

    if path:
        yield from _fault(f"{name} {path}", load)


def _fault(named: str, load: Callable[[], object]) -> Iterator[str]:
    try:
        load()
    except ssl.SSLError as error:
        yield f"{named} cannot be used: {_said(error)}"
    except OSError as error:
        yield f"{named} cannot be read: {error.strerror or error}"
    except ValueError as error:
        yield f"{named} cannot be used: {error}"


def _said(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words: KEY_VALUES_MISMATCH says enough, (_ssl.c:3900) nothing."""
    reasons = {
        "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
        "BAD_DECRYPT": "the key is encrypted; there is nobody to ask for its password",
        "BAD_PASSWORD_READ": "the key is encrypted; there is nobody to ask for its password",
        "NO_START_LINE": "it is not PEM",
        "NO_CERTIFICATE_OR_CRL_FOUND": "it has no certificate",
    }
    reason = error.reason or ""
    return reasons.get(reason, reason.replace("_", " ").lower() or "it is not PEM")


def find_unverified(config: Config) -> Iterator[str]:
    """Warning if the other nodes would refuse the certificate of this one by its own `ca_file`."""
    tls = config.cluster.tls
    if not tls.cert_file:
        return
    try:
        _greet(tls.cert_file, tls.key_file, tls.ca_file)
    except ssl.SSLCertVerificationError as error:
        yield (
            f"cluster.tls.cert_file {tls.cert_file} is not accepted by cluster.tls.ca_file {tls.ca_file}, and other nodes "
            f"with such a file refuse this one: {error.verify_message}"
        )
    except (ssl.SSLError, OSError):
        return  # `check_files` says so


def _greet(certificate: str, key: str, authority: str) -> None:
    """A handshake in memory, in which the client verifies the certificate."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key, password="")
    client.load_verify_locations(authority)
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for each in (asking, answering, asking):
        try:
            each.do_handshake()
        except ssl.SSLWantReadError:
            continue
