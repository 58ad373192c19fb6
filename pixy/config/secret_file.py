"""Files with secrets: that which the nodes of a cluster share, those of variables, keys, and users.

A node that runs reads some of them again when they change, on its event loop. So they have to be
regular files of a bounded size: to open a FIFO waits for a writer, for ever.
"""

import errno
import os
import re
from pathlib import Path
from stat import S_IRWXO, S_ISREG
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pixy.access import Users

SECRET_BYTES_MIN = 16
_SECRET_BYTES_MAX = 64 << 10
_LOADED_BYTES_MAX = 4 << 20
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


def check_regular(path: str | Path) -> None:
    """Check a file that a library is to load, such as a certificate, before it opens it.

    Raises:
        OSError: there is none; EINVAL: it is no regular file; EFBIG: it has more than 4 MiB.
    """
    _check(os.stat(path), str(path), _LOADED_BYTES_MAX)


def _check(status: os.stat_result, path: str, limit: int) -> None:
    if not S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, at most {limit} are allowed", path)


def read_secret(path: str) -> bytes:
    """The secret in a file, without white space around it. Waits for nobody.

    Raises:
        ValueError: it cannot be used; the text continues the option's name and says what to do.
    """
    secret, mode = _read_regular(path, _SECRET_BYTES_MAX)
    secret = secret.strip()
    if mode & S_IRWXO:
        raise ValueError(
            f"{path} is accessible to every user of this machine, with mode {mode & 0o777:03o}: "
            f"chmod o= {path}"
        )
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(
            f"{path} has a secret of {len(secret)} bytes, at least {SECRET_BYTES_MIN} are needed: "
            f"openssl rand -hex 32 > {path}"
        )
    return secret


def read_users(path: str) -> "Users":
    """The users in a file. Waits for nobody.

    Raises:
        ValueError: it cannot be used; the text continues the option's name, and has no credential.
    """
    from pixy.access import parse_users

    content, _ = _read_regular(path, _LOADED_BYTES_MAX)
    try:
        return parse_users(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_regular(path: str, limit: int) -> tuple[bytes, int]:
    """The content of a file, and its mode."""
    try:
        # Without a wait for the writer of a FIFO.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            _check(status, path, limit)
            return file.read(limit), status.st_mode
    except OSError as error:
        # What is too long for a path may be the secret itself, under the wrong name.
        shown = "" if error.errno == errno.ENAMETOOLONG else f"{path} "
        raise ValueError(f"{shown}cannot be read: {error.strerror or error}") from None


def is_there(path: str) -> bool:
    """False if there is no such file; why one cannot be read is left to whoever reads it."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def is_strong(secret: bytes) -> bool:
    """True if a secret is 32 or more hexadecimal or base64 characters, and not a few repeated."""
    return _STRONG.fullmatch(secret) is not None and len(set(secret)) > 8
