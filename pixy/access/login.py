"""Logins by SASL: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 against the same users.

PLAIN is checked against a credential of SCRAM, which takes milliseconds of a thread. One check runs
at a time, and addresses take turns. A name that is no user is treated as one with a credential that
nobody can have, so neither answers nor times tell which names there are.
"""

import hmac
import os
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pixy.access.plain import PlainRefused, parse_plain
from pixy.access.scram import (
    MECHANISMS,
    Credential,
    ScramExchange,
    ScramRefused,
    has_password,
    parse_client_first,
)
from pixy.access.users import Users
from pixy.access.users_file import UsersFile
from pixy.aio.address_quota import AddressSemaphore
from pixy.aio.one_thread import OneThread

PLAIN = "PLAIN"
_NONCE_BYTES = 18
_DECOY_SALT_BYTES = 16


class LoginFailed(Exception):
    """Credentials that are wrong, or no credentials.

    Attributes:
        user: whose they would be; empty if there is no such user.
    """

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class SaslStep(NamedTuple):
    """An answer to a client.

    Attributes:
        message: for the client.
        user: who it is; empty while the login goes on.
    """

    message: bytes
    user: str


class Logins:
    """Logins against the users of a file, in the running event loop.

    Args:
        file: of the users.
        random_bytes: as many random bytes as it is asked for.
    """

    mechanisms = (PLAIN, *MECHANISMS)

    def __init__(self, file: UsersFile, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._file = file
        self.random_bytes = random_bytes
        # Salts of names that are no users; the same each time that a name is asked for.
        self._decoy_key = random_bytes(32)
        self._turns = AddressSemaphore(1, 1)
        self._thread = OneThread()

    async def users(self) -> Users:
        """The users as they are in the file now."""
        return await self._file.present()

    def credential(self, users: Users, name: str, mechanism: str) -> tuple[Credential, bool]:
        """The credential of a user; for other names one that nobody has, and False."""
        found = users.credentials.get(name, {}).get(mechanism)
        if found is not None:
            return found, True
        known = next(iter(users.credentials.values()))
        salt = hmac.digest(self._decoy_key, name.encode(), "sha256")[:_DECOY_SALT_BYTES]
        size = hmac.new(b"", b"", MECHANISMS[mechanism]).digest_size
        return Credential(salt, next(iter(known.values())).iterations, bytes(size), bytes(size)), False

    async def has_password(self, client: str, mechanism: str, credential: Credential, password: str) -> bool:
        """True if a credential is that of a password.

        Args:
            client: address that takes a turn.
        """
        async with self._turns.holding(client, 1):
            return await self._thread.run(partial(has_password, mechanism, credential, password))


class Login:
    """The login of one client.

    Args:
        logins: shared by clients.
        mechanism: one of `Logins.mechanisms`.
        client: its address, without its port.
    """

    def __init__(self, logins: Logins, mechanism: str, client: str) -> None:
        self._logins = logins
        self._mechanism = mechanism
        self._client = client
        # Of SCRAM, between its two messages, and whose it is.
        self._exchange: ScramExchange | None = None
        self._user, self._is_known = "", False

    async def step(self, message: bytes) -> SaslStep:
        """The answer to a message of the client.

        Raises:
            LoginFailed: there is no other step.
        """
        try:
            if self._mechanism == PLAIN:
                return await self._plain(message)
            if self._exchange is None:
                return await self._begin(message)
            return SaslStep(self._finish(self._exchange, message), self._user)
        except (PlainRefused, ScramRefused) as refused:
            raise LoginFailed(str(refused), self._user if self._is_known else "") from None

    async def _plain(self, message: bytes) -> SaslStep:
        user, password = parse_plain(message)
        users = await self._logins.users()
        of_user = users.credentials.get(user) or next(iter(users.credentials.values()))
        mechanism = next(iter(of_user))
        credential, is_known = self._logins.credential(users, user, mechanism)
        if not await self._logins.has_password(self._client, mechanism, credential, password) or not is_known:
            raise LoginFailed("a wrong password", user if is_known else "")
        return SaslStep(b"", user)

    async def _begin(self, message: bytes) -> SaslStep:
        first = parse_client_first(message)
        users = await self._logins.users()
        credential, self._is_known = self._logins.credential(users, first.user, self._mechanism)
        self._user = first.user
        nonce = b64encode(self._logins.random_bytes(_NONCE_BYTES)).decode()
        self._exchange = ScramExchange(self._mechanism, first, credential, nonce)
        return SaslStep(self._exchange.challenge, "")

    def _finish(self, exchange: ScramExchange, message: bytes) -> bytes:
        answer = exchange.finish(message)
        if not self._is_known:
            raise ScramRefused("no such user")
        return answer
