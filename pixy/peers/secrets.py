"""The secrets that the nodes share, in files."""

import os
from collections.abc import Sequence

import structlog

from pixy.config import is_there, read_secret

log = structlog.get_logger(__name__)


class SharedSecrets:
    """The secrets of `cluster.secret_file` and `second_secret_file`, read again when they change.

    Args:
        path: of the secret that this node proves.
        second: of another one that it accepts; empty, or no file there: none.

    Raises:
        ValueError: as `read_secret`.
    """

    def __init__(self, path: str, second: str = "") -> None:
        self._path = path
        self._second = second
        self._seen = self._versions()
        self._secrets = self._read()

    def __call__(self) -> Sequence[bytes]:
        """The secrets: the first one is proven, each is accepted."""
        seen = self._versions()
        if seen != self._seen:
            self._seen = seen
            self._reload()
        return self._secrets

    def _read(self) -> tuple[bytes, ...]:
        first = read_secret(self._path)
        if not self._second or not is_there(self._second):
            return (first,)
        return first, read_secret(self._second)

    def _reload(self) -> None:
        try:
            self._secrets = self._read()
        except ValueError as error:
            log.error(
                "secrets of peers have changed and cannot be used; the old ones stay", reason=str(error)
            )
        else:
            log.info("secrets of peers have changed and are used", accepted=len(self._secrets))

    def _versions(self) -> list[tuple[int, ...]]:
        return [_version(path) for path in (self._path, self._second) if path]


def _version(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode
