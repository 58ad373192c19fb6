"""pixy/access/scram.py: vectors of the RFC, and every message that is none."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from pixy.access.scram import (
    MECHANISMS,
    ScramExchange,
    ScramRefused,
    has_password,
    make_credential,
    parse_client_first,
)

SALT = b"0123456789abcdef"


def client_final(
    mechanism: str, password: str, challenge: bytes, first_bare: str, header: str = "n,,", nonce: str = ""
) -> bytes:
    """The message of a client that has a password."""
    name = MECHANISMS[mechanism]
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac(name, password.encode(), b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", name)
    without_proof = f"c={b64encode(header.encode()).decode()},r={nonce or fields['r']}"
    signed = f"{first_bare},{challenge.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    return f"{without_proof},p={b64encode(proof).decode()}".encode()


def test_the_example_of_rfc_7677() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = make_credential("SCRAM-SHA-256", "pencil", salt, 4096)
    first = parse_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    exchange = ScramExchange("SCRAM-SHA-256", first, credential, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.finish(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("password", ["secret", "geheim€ mit, und = "])
def test_a_client_with_the_password_logs_in_and_no_other(mechanism: str, password: str) -> None:
    credential = make_credential(mechanism, password, SALT, 4096)
    assert has_password(mechanism, credential, password)
    assert not has_password(mechanism, credential, password + "x")
    bare = "n=user,r=abc"
    for given, header, right in ((password, "n,,", True), ("wrong", "n,,", False), (password, "y,,", True)):
        exchange = ScramExchange(mechanism, parse_client_first(f"{header}{bare}".encode()), credential, "def")
        final = client_final(mechanism, given, exchange.challenge, bare, header)
        if right:
            assert exchange.finish(final).startswith(b"v=")
        else:
            with pytest.raises(ScramRefused, match="wrong proof"):
                exchange.finish(final)


def test_every_flipped_byte_and_truncated_prefix_of_a_proof_is_refused() -> None:
    credential = make_credential("SCRAM-SHA-256", "secret", SALT, 4096)
    exchange = ScramExchange("SCRAM-SHA-256", parse_client_first(b"n,,n=user,r=abc"), credential, "def")
    final = client_final("SCRAM-SHA-256", "secret", exchange.challenge, "n=user,r=abc")
    for at in range(len(final)):
        with pytest.raises(ScramRefused):
            exchange.finish(final[:at])
        with pytest.raises(ScramRefused):
            exchange.finish(final[:at] + bytes([final[at] ^ 1]) + final[at + 1 :])
    assert exchange.finish(final)


def test_the_header_of_the_first_message_is_repeated_in_the_final_one() -> None:
    credential = make_credential("SCRAM-SHA-256", "secret", SALT, 4096)
    exchange = ScramExchange("SCRAM-SHA-256", parse_client_first(b"n,,n=user,r=abc"), credential, "def")
    final = client_final("SCRAM-SHA-256", "secret", exchange.challenge, "n=user,r=abc", header="y,,")
    with pytest.raises(ScramRefused, match="another channel binding"):
        exchange.finish(final)
    final = client_final("SCRAM-SHA-256", "secret", exchange.challenge, "n=user,r=abc", nonce="abcxyz")
    with pytest.raises(ScramRefused, match="another nonce"):
        exchange.finish(final)


def test_the_doubled_nonce_of_old_librdkafka_is_taken() -> None:
    credential = make_credential("SCRAM-SHA-256", "secret", SALT, 4096)
    exchange = ScramExchange("SCRAM-SHA-256", parse_client_first(b"n,,n=user,r=abc"), credential, "def")
    final = client_final("SCRAM-SHA-256", "secret", exchange.challenge, "n=user,r=abc", nonce="abcabcdef")
    assert exchange.finish(final).startswith(b"v=")


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"n,,n=a=2Cb=3Dc,r=x", "a,b=c"),
        (b"n,a=user,n=user,r=x", "user"),
        (b"y,,n=user,r=x,tokenauth=false", "user"),
    ],
)
def test_names_are_taken_without_their_escapes(message: bytes, user: str) -> None:
    assert parse_client_first(message).user == user


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=x,n=user",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"n,,n=a=2cb,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,other,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"\xff,,n=user,r=x",
    ],
)
def test_what_is_no_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(ScramRefused):
        parse_client_first(message)
