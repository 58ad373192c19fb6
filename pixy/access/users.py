"""Users and their credentials, as text. Pure.

    # comment
    USER SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY SCRAM-SHA-512$…

A line for each user, with at least one credential, in base64 and the form of PostgreSQL's
`pg_authid`. Nobody can log in with what the file has. Names have at most 255 bytes and no white
space, control characters or `#` in front.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import new
from typing import NamedTuple

from pixy.access.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    SALT_BYTES_MAX,
    SALT_BYTES_MIN,
    Credential,
)

NAME_BYTES_MAX = 255
_CREDENTIAL = re.compile(r"(SCRAM-SHA-(?:256|512))\$([0-9]{1,9}):([^$:]+)\$([^$:]+):([^$:]+)", re.ASCII)


class Users(NamedTuple):
    """The users of a file.

    Attributes:
        credentials: by user and mechanism.
    """

    credentials: Mapping[str, Mapping[str, Credential]]


def check_name(name: str) -> None:
    """Check the name of a user.

    Raises:
        ValueError: it cannot be one.
    """
    if not name.isprintable() or not name or any(each.isspace() for each in name) or name.startswith("#"):
        raise ValueError("a user's name has printable characters, no white space and no # in front")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"a user's name has at most {NAME_BYTES_MAX} bytes")


def user_line(name: str, credentials: Mapping[str, Credential]) -> str:
    """The line of a user.

    Args:
        credentials: by mechanism.

    Raises:
        ValueError: the name cannot be one.
    """
    check_name(name)
    return " ".join([name, *(_shown(*each) for each in credentials.items())])


def parse_users(content: bytes) -> Users:
    """The users of a file.

    Raises:
        ValueError: a line is none, or there is no user. The text has the line's number and no
            credential.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    found: dict[str, Mapping[str, Credential]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            check_name(words[0])
            if words[0] in found:
                raise ValueError("the user is there twice")
            found[words[0]] = _credentials(words[1:])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not found:
        raise ValueError("it has no user; pixy user NAME makes a line")
    return Users(found)


def _shown(mechanism: str, credential: Credential) -> str:
    salt, stored_key, server_key = (
        b64encode(each).decode() for each in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"{mechanism}${credential.iterations}:{salt}${stored_key}:{server_key}"


def _credentials(words: list[str]) -> dict[str, Credential]:
    if not words:
        raise ValueError("a user without a credential; pixy user NAME makes a line")
    found: dict[str, Credential] = {}
    for word in words:
        mechanism, credential = _credential(word)
        if mechanism in found:
            raise ValueError(f"two credentials of {mechanism}")
        found[mechanism] = credential
    return found


def _credential(word: str) -> tuple[str, Credential]:
    match = _CREDENTIAL.fullmatch(word)
    if match is None:
        raise ValueError("expected SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY, or SCRAM-SHA-512")
    mechanism, iterations = match[1], int(match[2])
    try:
        salt, stored_key, server_key = (b64decode(match[group], validate=True) for group in (3, 4, 5))
    except ValueError:
        raise ValueError(f"{mechanism} with a part that is no base64") from None
    size = new(MECHANISMS[mechanism]).digest_size
    if len(stored_key) != size or len(server_key) != size:
        raise ValueError(f"keys of {mechanism} have {size} bytes")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"{iterations} iterations, expected {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
        raise ValueError(f"a salt of {len(salt)} bytes, expected {SALT_BYTES_MIN} to {SALT_BYTES_MAX}")
    return mechanism, Credential(salt, iterations, stored_key, server_key)
