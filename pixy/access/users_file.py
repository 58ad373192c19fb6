"""The file with the users, read again when it has changed.

It may have thousands of lines, so it is read on a thread.
"""

import asyncio
import os
from collections.abc import Callable

import structlog

from pixy.access.users import Users

log = structlog.get_logger(__name__)


class UsersFile:
    """The users of a file.

    Args:
        path: of the file.
        read: reads and parses it; raises ValueError with a reason.

    Raises:
        ValueError: as `read`.
    """

    def __init__(self, path: str, read: Callable[[str], Users]) -> None:
        self._path = path
        self._read = read
        self._seen = self._version()
        self._users = read(path)
        self._reading = asyncio.Lock()

    async def present(self) -> Users:
        """The users as they are in the file now. Those of before stay while it cannot be used."""
        if self._version() != self._seen:
            async with self._reading:
                await self._maybe_read()
        return self._users

    async def _maybe_read(self) -> None:
        version = self._version()
        if version == self._seen:
            return
        try:
            self._users = await asyncio.to_thread(self._read, self._path)
        except ValueError as error:
            log.error("users have changed and cannot be used; the old ones stay", reason=str(error))
        else:
            log.info("users have changed and are used", users=len(self._users.credentials))
        # Behind the read: until then others wait for it.
        self._seen = version

    def _version(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode
