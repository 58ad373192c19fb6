"""A request, and its answer."""

from typing import TYPE_CHECKING, Any, Protocol

from pixy.kafka_messages import KafkaHead

if TYPE_CHECKING:
    from pixy.wire.apis import ServedApi


class CancellableWork(Protocol):
    """Work of an exchange that outlives its handler."""

    def cancel(self) -> object:
        """End the work: its client is gone."""


class WireHost(Protocol):
    """The connection of an exchange."""

    @property
    def peer(self) -> str: ...

    session: dict[str, Any]
    user: str | None

    def respond(self, exchange: "WireExchange", response: Any) -> None:
        """Take an answer, None for no answer, and forget its exchange."""

    async def wait_turn(self, exchange: "WireExchange") -> None:
        """Return when all earlier requests are answered, and the client has read most of that."""

    def refuse(self, reason: str) -> None:
        """End the connection as `end` does, and tell the log why."""

    def expect_tokens(self) -> None:
        """Take the next frames, until a login, as tokens of SASL without heads."""

    def note_failed_login(self, user: str) -> None:
        """Count a login that has failed, for the log."""

    def end(self) -> None:
        """End the connection after the answers to earlier requests."""

    def broken(self, bug: Exception) -> None:
        """End the connection: an exception of a handler is a bug."""


class WireExchange:
    """A request to one API, until its answer or until its client is gone.

    Attributes:
        api: of the request.
        version: of its message, and so of the answer.
        client_id: the client's name for itself.
        number: of the request on its connection.
        is_token: it is a token of SASL without a head, and so is its answer.
        running: it is neither answered nor abandoned.
        held_bytes: of the frame, as the connection counts them.
        work: that goes on after the handler has returned.
    """

    __slots__ = (
        "_connection",
        "api",
        "client_id",
        "correlation_id",
        "held_bytes",
        "is_token",
        "number",
        "running",
        "version",
        "work",
    )

    def __init__(
        self, connection: WireHost, api: "ServedApi", head: KafkaHead, number: int, held_bytes: int
    ) -> None:
        self._connection = connection
        self.api = api
        self.version = head.version
        self.client_id = head.client_id
        self.correlation_id = head.correlation_id
        self.number = number
        self.held_bytes = held_bytes
        self.is_token = False
        self.running = True
        self.work: CancellableWork | None = None

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._connection.peer

    @property
    def user(self) -> str | None:
        """The user that has logged in; None if nobody has, or nobody has to."""
        return self._connection.user

    @property
    def session(self) -> dict[str, Any]:
        """State of the connection that handlers keep, such as a login that is under way."""
        return self._connection.session

    def answer(self, response: Any) -> None:
        """Answer with a message of the API's response, None for no answer at all. It is left out if
        the client is gone.
        """
        if self.running:
            self.running = False
            self._connection.respond(self, response)

    def refuse(self, reason: str) -> None:
        """End the connection instead of an answer: the protocol has no other way to refuse a
        request that is not answered.
        """
        if self.running:
            self.answer(None)
            self._connection.refuse(reason)

    def log_in(self, user: str) -> None:
        """The client is this user from now on. Comes before the answer."""
        self._connection.user = user

    def note_failed_login(self, user: str) -> None:
        """Count a login that has failed, for one line of the log a minute.

        Args:
            user: whose it would have been, or a fixed text. Not what a client has sent: that may be
                a password.
        """
        self._connection.note_failed_login(user)

    def expect_tokens(self) -> None:
        """Take what comes next as tokens of SASL without heads, until a login: each is a request to
        SaslAuthenticate (SaslHandshake of version 0). Comes before the answer.
        """
        self._connection.expect_tokens()

    def answer_last(self, response: Any) -> None:
        """Answer, and end the connection."""
        if self.running:
            self.answer(response)
            self._connection.end()

    async def wait_turn(self) -> None:
        """Wait until this answer is the next one to be written, and there is space for it."""
        await self._connection.wait_turn(self)

    def fail(self, bug: Exception) -> None:
        """End the connection: a handler has met a bug."""
        if self.running:
            self.running = False
            self._connection.broken(bug)

    def gone(self) -> None:
        """The client is gone."""
        self.running = False
        if self.work is not None:
            self.work.cancel()
