"""A broker with listeners for TLS, for TLS with client certificates, and for SASL in plaintext and
over TLS.
"""

import base64
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from pixy.backend.kafka.client import KafkaClient
from pixy.backend.kafka.options import KafkaOptions
from pixy.kafka_protocol import Api
from pixy.kafka_protocol.fields import (
    COMPACT_BYTES,
    COMPACT_STRING,
    INT8,
    INT16,
    INT32,
    TAGGED_FIELDS,
    CompactArray,
    Struct,
)
from tests.judges.daemons import Certificate, make_certificate
from tests.kafka.cluster import KafkaCluster, free_ports

USER, PASSWORD = "me", "a secret: with, odd=characters"

_LISTENERS = ("SSL", "MUTUAL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MODULES = {
    "PLAIN": f'plain.PlainLoginModule required user_{USER}="{PASSWORD}"',
    "SCRAM-SHA-256": "scram.ScramLoginModule required",
    "SCRAM-SHA-512": "scram.ScramLoginModule required",
    "OAUTHBEARER": 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"',
}

_TAGS = ("tags", TAGGED_FIELDS)
_ALTER_SCRAM = Api(
    "AlterUserScramCredentials",
    51,
    0,
    Struct(
        ("deletions", CompactArray(("name", COMPACT_STRING), ("mechanism", INT8), _TAGS)),
        (
            "upsertions",
            CompactArray(
                ("name", COMPACT_STRING),
                ("mechanism", INT8),
                ("iterations", INT32),
                ("salt", COMPACT_BYTES),
                ("salted_password", COMPACT_BYTES),
                _TAGS,
            ),
        ),
        _TAGS,
    ),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "results",
            CompactArray(
                ("user", COMPACT_STRING),
                ("error_code", INT16),
                ("error_message", COMPACT_STRING),
                _TAGS,
            ),
        ),
        _TAGS,
    ),
)


class SecuredKafka:
    """One broker; `addresses` has its addresses by kind of listener; `certificate` is its own, and
    its authority.

    Args:
        folder: directory of its files.
    """

    def __init__(self, folder: Path) -> None:
        self.certificate = make_certificate(folder)
        self.cluster = KafkaCluster(folder / "kafka")
        ports = dict(zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True))
        self.addresses: Mapping[str, str] = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.cluster.properties = _properties(self.cluster, self.addresses, self.certificate)

    async def start(self) -> None:
        """Start it, and create its user."""
        self.cluster.start()
        client = KafkaClient(KafkaOptions(tuple(self.cluster.addresses), "tests"))
        await client.start()
        try:
            for credential in (_scram(1, "sha256"), _scram(2, "sha512")):
                answer = await client.send_any(_ALTER_SCRAM([], [credential], {}))
                assert [code for _, code, *_ in answer.results] == [0], answer
        finally:
            await client.stop()


def write_token(path: Path) -> Path:
    """Write an unsigned token, accepted by a broker without trusted issuers; returns its file."""
    claims = {"sub": USER, "iat": time.time() - 10, "exp": time.time() + 3600}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    path.write_text(".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + ".\n")
    return path


def _properties(cluster: KafkaCluster, addresses: Mapping[str, str], certificate: Certificate) -> str:
    broker = cluster.broker(1)
    keystore = certificate.path.with_name("keystore.pem")
    keystore.write_text(certificate.key_path.read_text() + certificate.path.read_text())
    own = f"PLAINTEXT://{broker.address}"
    advertised = ",".join([own, *(f"{name}://{address}" for name, address in addresses.items())])
    lines = {
        "listeners": f"{advertised},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": advertised,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,MUTUAL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate.path),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        for mechanism, module in _MODULES.items():
            name = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
            lines[name] = f"org.apache.kafka.common.security.{module};"
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _scram(mechanism: int, digest: str) -> tuple[str, int, int, bytes, bytes, dict[int, bytes]]:
    salt, iterations = os.urandom(16), 4096
    salted = hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), salt, iterations)
    return USER, mechanism, iterations, salt, salted, {}
