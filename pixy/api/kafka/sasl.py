"""SaslHandshake and SaslAuthenticate: logins of Kafka's clients.

A login that fails is answered after a while, as Kafka does, so that nobody tries many passwords
quickly on a connection; then the connection ends.
"""

import asyncio

from pixy.access import Login, LoginFailed, Logins
from pixy.api.kafka.codes import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
)
from pixy.client_address import client_address
from pixy.kafka_messages.generated.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from pixy.kafka_messages.generated.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from pixy.wire import WireExchange

_FAILED_S = 0.1
"""Kafka's `connection.failed.authentication.delay.ms`."""
_LOGIN = "login"
_NO_USER = "no user of sasl.users_file"


class SaslApi:
    """Answers requests of logins.

    Args:
        logins: None if clients do not log in.
    """

    def __init__(self, logins: Logins | None) -> None:
        self._logins = logins

    def handshake(
        self, exchange: WireExchange, request: SaslHandshakeRequest
    ) -> SaslHandshakeResponse | None:
        """SaslHandshake: begin a login."""
        logins = self._logins
        if logins is None or exchange.user is not None:
            return SaslHandshakeResponse(ILLEGAL_SASL_STATE, [])
        mechanisms = list(logins.mechanisms)
        if request.mechanism not in mechanisms:
            exchange.answer_last(SaslHandshakeResponse(UNSUPPORTED_SASL_MECHANISM, mechanisms))
            return None
        exchange.session[_LOGIN] = Login(logins, request.mechanism, client_address(exchange.peer))
        if exchange.version == 0:
            exchange.expect_tokens()
        return SaslHandshakeResponse(NONE, mechanisms)

    async def authenticate(
        self, exchange: WireExchange, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse | None:
        """SaslAuthenticate: one message of a login."""
        login: Login | None = exchange.session.get(_LOGIN)
        if login is None:
            text = "SaslAuthenticate without SaslHandshake, or after a login"
            return SaslAuthenticateResponse(ILLEGAL_SASL_STATE, text, b"")
        try:
            step = await login.step(bytes(request.auth_bytes))
        except LoginFailed as failed:
            exchange.note_failed_login(failed.user or _NO_USER)
            await asyncio.sleep(_FAILED_S)
            text = "Authentication failed: the user or the password is wrong"
            exchange.answer_last(SaslAuthenticateResponse(SASL_AUTHENTICATION_FAILED, text, b""))
            return None
        if step.user:
            del exchange.session[_LOGIN]
            exchange.log_in(step.user)
        return SaslAuthenticateResponse(NONE, None, step.message)
