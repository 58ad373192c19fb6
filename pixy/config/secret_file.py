"""Files with secrets: that which the nodes of a cluster share, and those of variables."""

import errno
import os
import re
from pathlib import Path
from stat import S_IRWXO, S_ISREG

__all__ = ["SECRET_BYTES_MIN", "is_strong", "read_bounded", "read_secret"]

SECRET_BYTES_MIN = 16
_SECRET_BYTES_MAX = 64 << 10
_STRONG = re.compile(rb"[A-Za-z0-9+/_=\s-]{32,}")


def read_bounded(path: str, limit: int = _SECRET_BYTES_MAX) -> bytes:
    """The bytes of a file that may be anything, such as /dev/zero.

    Raises:
        OSError: it cannot be read; EFBIG: it has more bytes than the limit.
    """
    with Path(path).open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", path)
    return content


def read_secret(path: str) -> bytes:
    """The secret in a file, without white space around it.

    Raises:
        ValueError: it cannot be used; the text continues the option's name and says what to do.
    """
    try:
        with Path(path).open("rb") as file:
            status, secret = os.fstat(file.fileno()), file.read(_SECRET_BYTES_MAX).strip()
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


def is_strong(secret: bytes) -> bool:
    """True if a secret is 32 or more hexadecimal or base64 characters, and not a few repeated."""
    return _STRONG.fullmatch(secret) is not None and len(set(secret)) > 8
