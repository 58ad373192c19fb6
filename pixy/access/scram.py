"""SCRAM, the server's side (RFC 5802; RFC 7677 for SHA-256). Pure.

    client first   gs2 header `n,,` or `y,,`, then `n=user,r=nonce`
    server first   `r=nonce,s=salt,i=iterations`; the nonce continues the client's
    client final   `c=header,r=nonce,p=proof`
    server final   `v=signature`

Names and passwords are taken as their UTF-8 bytes, as Kafka and its clients do, without the
normalisation of SASLprep. Channel binding is not served (`p=`). Extensions are ignored, but for
those that a server has to understand (`m=`), which are refused.

librdkafka before 2.6.1, and so the kcat of most distributions, puts the client's nonce in front of
the whole nonce in its final message. That is taken too: the proof is of the server's nonce anyway,
which is in the challenge.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import NamedTuple

MECHANISMS: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Hash functions by mechanism."""

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384
"""As Kafka's. Each check of a password by PLAIN takes as many."""

SALT_BYTES_MIN, SALT_BYTES_MAX = 8, 64


class ScramRefused(Exception):
    """A message that is none of SCRAM's, or a proof that is wrong."""


class Credential(NamedTuple):
    """The part of a password that a server keeps. Nobody can log in with it.

    Attributes:
        salt, iterations: of the key derivation.
        stored_key: hash of the client's key.
        server_key: proves that the server has the credential.
    """

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def make_credential(mechanism: str, password: str, salt: bytes, iterations: int) -> Credential:
    """The credential of a password. Takes milliseconds: 1 µs for each iteration.

    Args:
        mechanism: one of `MECHANISMS`.
        salt: random bytes.
    """
    name = MECHANISMS[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode("utf-8", "surrogatepass"), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return Credential(
        salt, iterations, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name)
    )


def has_password(mechanism: str, credential: Credential, password: str) -> bool:
    """True if a credential is that of a password. Takes as long as `make_credential`."""
    made = make_credential(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


class ClientFirst(NamedTuple):
    """The first message of a client.

    Attributes:
        header: the gs2 header, which the final message repeats.
        bare: the message behind it.
        user: name of the user.
        nonce: the client's.
    """

    header: str
    bare: str
    user: str
    nonce: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Parse a first message.

    Raises:
        ScramRefused: it is none, or asks for what is not served.
    """
    text = _decoded(message)
    flag, _, rest = text.partition(",")
    authzid, comma, bare = rest.partition(",")
    if flag not in {"n", "y"} or not comma:
        raise ScramRefused("no first message of SCRAM without channel binding")
    attributes = _attributes(bare, "n", "r")
    user = _unescaped(attributes["n"])
    if authzid and (not authzid.startswith("a=") or _unescaped(authzid[2:]) != user):
        raise ScramRefused("a user cannot act as another one")
    if not user or not attributes["r"]:
        raise ScramRefused("a first message of SCRAM without a user or a nonce")
    return ClientFirst(f"{flag},{authzid},", bare, user, attributes["r"])


class ScramExchange:
    """One exchange, after the client's first message.

    Args:
        mechanism: one of `MECHANISMS`.
        first: message of the client.
        credential: of its user.
        nonce: random text without commas.

    Attributes:
        challenge: the answer to the first message.
    """

    def __init__(self, mechanism: str, first: ClientFirst, credential: Credential, nonce: str) -> None:
        self._hash = MECHANISMS[mechanism]
        self._first = first
        self._credential = credential
        self._nonce = first.nonce + nonce
        salt = b64encode(credential.salt).decode()
        self.challenge = f"r={self._nonce},s={salt},i={credential.iterations}".encode()

    def finish(self, message: bytes) -> bytes:
        """The answer to the client's final message, which proves that it has the password.

        Raises:
            ScramRefused: it does not.
        """
        text = _decoded(message)
        without_proof, _, proof = text.rpartition(",p=")
        attributes = _attributes(without_proof, "c", "r")
        if attributes["c"] != b64encode(self._first.header.encode()).decode():
            raise ScramRefused("another channel binding than in the first message")
        if attributes["r"] not in {self._nonce, self._first.nonce + self._nonce}:
            raise ScramRefused("another nonce than the server's")
        signed = b",".join((self._first.bare.encode(), self.challenge, without_proof.encode()))
        credential = self._credential
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        proven = _decoded_base64(proof)
        if len(proven) != len(signature):
            raise ScramRefused("a proof of another length")
        client_key = bytes(one ^ other for one, other in zip(proven, signature, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise ScramRefused("a wrong proof")
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, self._hash))


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramRefused("a message that is no UTF-8") from None


def _decoded_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ScramRefused("a proof that is no base64") from None


def _attributes(text: str, *names: str) -> dict[str, str]:
    """The first attributes of a message, which have to be these in this order."""
    parts = text.split(",", len(names))
    found = dict(zip(names, (part[2:] for part in parts), strict=False))
    if len(found) < len(names) or not all(
        part.startswith(f"{name}=") for name, part in zip(names, parts, strict=False)
    ):
        raise ScramRefused(f"no message of SCRAM with {' and '.join(names)}")
    return found


def _unescaped(name: str) -> str:
    """A name without the escapes of commas and equals signs (RFC 5802 §5.1)."""
    plain = name.replace("=2C", "\0").replace("=3D", "\1")
    if "=" in plain:
        raise ScramRefused("a name with an escape that is none")
    return plain.replace("\0", ",").replace("\1", "=")
