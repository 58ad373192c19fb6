"""An exchange: a request and its answer.

It runs from its request until its answer, or until the client is gone, and then the handler's work
is cancelled. Later answers are ignored. The receipt of an answer is told exactly once, see
`pixy.serving.receipts`: an answer is delivered when it was handed to the transport, behind those of
earlier requests of the connection.
"""

from typing import TYPE_CHECKING, Protocol

from pixy.faults import internal_error
from pixy.http1 import RequestHead
from pixy.serving import Receipt
from pixy.web.answers import AnswerHead
from pixy.web.form import Form, parse_form
from pixy.web.router import Match, Revocable
from pixy.web.style import HttpError

if TYPE_CHECKING:
    from pixy.web.environment import WebEnvironment


class ExchangeHost(Protocol):
    """The connection of an exchange."""

    environment: "WebEnvironment"

    @property
    def peer(self) -> str: ...

    def respond(self, exchange: "Exchange", head: AnswerHead, body: bytes, receipt: Receipt | None) -> None:
        """Take a whole answer, and forget its exchange."""

    async def begin(self, exchange: "Exchange", head: AnswerHead) -> None:
        """Begin an answer in pieces, when its turn has come."""

    async def send(self, exchange: "Exchange", piece: bytes, receipt: Receipt | None) -> None:
        """Send a piece, and return when the transport takes more."""

    def end(self, exchange: "Exchange", *, whole: bool) -> None:
        """End an answer in pieces, and forget its exchange. If it is not whole, its client learns
        that by the connection's end.
        """

    def undelivered(self, receipt: Receipt) -> None:
        """Tell a receipt whose answer was not accepted."""

    def broken(self, bug: Exception) -> None:
        """End the connection: an exception of the core is a bug."""


class Exchange:
    """A request, and the answer to it.

    Attributes:
        head: of the request.
        body: of the request; its handler may let go of it.
        number: of the request on its connection.
        running: it is neither answered nor abandoned.
        route, parameters, is_coroutine: see `Match`.
        began: time of the request, in seconds on the server's clock.
        begun: an answer in pieces was begun.
        held_bytes: of the body, as the connection counts them.
    """

    __slots__ = (
        "_connection",
        "_query",
        "began",
        "begun",
        "body",
        "head",
        "held_bytes",
        "is_coroutine",
        "number",
        "parameters",
        "route",
        "running",
        "work",
    )

    def __init__(
        self,
        connection: ExchangeHost,
        number: int,
        head: RequestHead,
        match: Match,
        body: bytes,
        began: float,
    ) -> None:
        self._connection = connection
        self.route, self.parameters, self.is_coroutine = match
        self.number = number
        self.head = head
        self.body = body
        self.began = began
        self.running = True
        self.begun = False
        self.held_bytes = 0
        self._query: Form | None = None
        # Cancelled if the client is gone before the answer.
        self.work: Revocable | None = None

    # --- the request ------------------------------------------------------------------------------

    @property
    def query(self) -> Form:
        """Parameters of the query."""
        if self._query is None:
            self._query = parse_form(self.head.query)
        return self._query

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._connection.peer

    # --- the answer -------------------------------------------------------------------------------

    def answer(self, head: AnswerHead, body: bytes, receipt: Receipt | None = None) -> None:
        """End with a whole answer.

        Args:
            receipt: told the outcome of the answer.
        """
        if not self.running or self.begun:
            if receipt is not None:
                self._connection.undelivered(receipt)
            return
        self.running = False
        try:
            self._connection.respond(self, head, body, receipt)
        except Exception as bug:
            self._connection.broken(bug)
            if receipt is not None:
                self._connection.undelivered(receipt)

    def fail(self, error: Exception, receipt: Receipt | None = None) -> None:
        """End with the answer of an error; 500 for a bug.

        Args:
            receipt: of the answer that could not be made.
        """
        environment = self._connection.environment
        if receipt is not None:
            self._connection.undelivered(receipt)
        style = self.route.style
        told = style.translate(error)
        if told is None:
            environment.shared.note(error)
            told = HttpError(500, str(internal_error(error)))
        if not self.running:
            return
        if told.limit:
            environment.shared.limits.hit(told.limit, self.peer)
        if self.begun:
            self.running = False
            self._connection.end(self, whole=False)
        else:
            self.answer(*style.render(told.status, str(told)))

    async def begin(self, head: AnswerHead) -> None:
        """Begin an answer in pieces, once earlier requests of the connection are answered."""
        await self._connection.begin(self, head)
        self.begun = True

    async def send(self, piece: bytes, receipt: Receipt | None = None) -> None:
        """Send a piece of the answer; returns when the transport takes more.

        Args:
            receipt: told the outcome of the piece.
        """
        assert self.begun
        await self._connection.send(self, piece, receipt)

    def end(self) -> None:
        """End an answer in pieces."""
        if self.running:
            self.running = False
            self._connection.end(self, whole=True)

    # --- for the connection -----------------------------------------------------------------------

    def gone(self) -> None:
        """The connection is lost."""
        shared = self._connection.environment.shared
        shared.counters.gone += 1
        self.running = False
        work, self.work = self.work, None
        if work is not None:
            try:
                work.cancel()
            except Exception as bug:
                shared.note(bug)
