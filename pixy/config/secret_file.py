"""The file with the secret that the nodes of a cluster share."""

import os
from pathlib import Path
from stat import S_IRWXO, S_ISREG

__all__ = ["SECRET_BYTES_MIN", "read_secret"]

SECRET_BYTES_MIN = 16


def read_secret(path: str) -> bytes:
    """The secret in a file, without white space around it.

    Raises:
        ValueError: it cannot be used; the text continues the option's name and says what to do.
    """
    try:
        with Path(path).open("rb") as file:
            status, secret = os.fstat(file.fileno()), file.read().strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if S_ISREG(status.st_mode) and status.st_mode & S_IRWXO:
        raise ValueError(
            f"{path} is accessible to every user of this machine, with mode {status.st_mode & 0o777:03o}: "
            f"chmod o= {path}"
        )
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(
            f"{path} has a secret of {len(secret)} bytes, at least {SECRET_BYTES_MIN} are needed: "
            f"openssl rand -hex 32 > {path}"
        )
    return secret
