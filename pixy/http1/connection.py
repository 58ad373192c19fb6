"""One connection of HTTP/1.1: requests out of bytes, and answers in the order of their requests.

    receive        takes a chunk; `next_event` then returns what is complete in it, one at a time
    respond        takes a whole answer. Answers leave in the order of the requests (RFC 9112 §9.3):
                   an early one waits for those before it
    send, finish   the same for an answer in pieces, which has its turn when `line` is its number

Requests have numbers from 0 on. The connection closes behind the answer of the last one: a client
says that it is, a drain makes it so, and nothing is read behind bytes that were refused.

Nothing is taken from the input while `full`: as many requests are unanswered as may be. Clocks run
as follows, in seconds of the caller's clock:

    head_s    from the first byte of a head to its end
    body_s    from there to the end of the body
    idle_s    without a request or a byte of one
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pixy.http1.body import Body, ChunkedBody, SizedBody
from pixy.http1.head import HeadCache, HeadError, RequestHead
from pixy.http1.response import CONTINUE

_new_tuple = tuple.__new__
_CRLF = b"\r\n"
_END = b"\r\n\r\n"


class Http1Options(NamedTuple):
    """Limits of a connection. Times are in seconds; 0 switches a time off.

    Attributes:
        head_bytes: largest head.
        unanswered_max: requests that are read ahead of their answers.
        head_s, body_s, idle_s: see the module.
    """

    head_bytes: int = 16_384
    unanswered_max: int = 64
    head_s: float = 10
    body_s: float = 120
    idle_s: float = 120


class HttpRequest(NamedTuple):
    """A request is complete."""

    number: int
    head: RequestHead
    body: bytes


class HttpRefusal(NamedTuple):
    """A request is refused, and is the last one. It is answered like any other.

    Attributes:
        head: of the request, None if that is what was refused.
    """

    number: int
    status: int
    text: str
    head: RequestHead | None


class Http1Connection:
    """One connection of a server.

    Args:
        options: limits.
        heads: parsed heads, shared by connections.
        body_bytes_max: of the body of a request with that head.
        now: seconds on the caller's clock.

    Attributes:
        line: number of the first request that is unanswered.
        held: the caller takes no further request for now; input is kept.
        more: input is left that was not looked at.
        ending: the last request is known, or a drain has begun.
        closed: nothing more is received, and no output follows but what is there.
        data_expected: bytes of a body that certainly come next.
        has_output: there are bytes to be written.
        queued_bytes: bytes of answers that were not taken.
    """

    __slots__ = (
        "_at",
        "_body",
        "_body_bytes_max",
        "_continue",
        "_draining",
        "_early",
        "_ended",
        "_head",
        "_heads",
        "_input",
        "_last",
        "_next",
        "_options",
        "_output",
        "_partial_since",
        "_since",
        "_stop_at",
        "_unanswered_max",
        "_unwritten",
        "closed",
        "data_expected",
        "ending",
        "has_output",
        "held",
        "line",
        "more",
        "queued_bytes",
    )

    def __init__(
        self,
        options: Http1Options,
        heads: HeadCache,
        body_bytes_max: Callable[[RequestHead], int],
        now: float,
    ) -> None:
        self._options = options
        self._unanswered_max = options.unanswered_max
        self._heads = heads
        self._body_bytes_max = body_bytes_max
        # Input, where it was read to, and where the present slice ends.
        self._input = b""
        self._at = self._stop_at = 0
        self.more = False
        # The head of the request whose body is being received.
        self._head: RequestHead | None = None
        self._body: Body | None = None
        self.data_expected = 0
        # Its client waits for `100 Continue`, which has to wait for earlier answers.
        self._continue = False
        # Number of the next request. Invariant: `line` <= `_next`, and requests from `line` on are
        # unanswered or have an answer in `_early`.
        self._next = 0
        self.line = 0
        self.held = False
        # Whole answers of requests behind `line`.
        self._early: dict[int, bytes] = {}
        self._output: list[bytes] = []
        self.has_output = False
        self.queued_bytes = self._unwritten = 0
        # Number of the last request, once it is known.
        self._last: int | None = None
        self._draining = self._ended = self.ending = self.closed = False
        self._since = now
        # Since when the head or the body is incomplete.
        self._partial_since: float | None = None

    # --- input ------------------------------------------------------------------------------------

    def receive(self, chunk: bytes, work: int) -> None:
        """Take bytes, of which `next_event` looks at about `work`."""
        if self._last is not None or self._ended:
            return
        if chunk:
            self._input = self._input[self._at :] + chunk if self._at < len(self._input) else chunk
            self._at = 0
        self._stop_at = self._at + work
        self.more = self._at < len(self._input)

    def next_event(self, now: float) -> HttpRequest | HttpRefusal | None:
        """The next request, None if none is complete, or the slice is over, or answers have to
        leave first.
        """
        number = self._next
        if (
            not self.more
            or self.held
            or number - self.line >= self._unanswered_max
            or self._at >= self._stop_at
        ):
            return None
        try:
            request = self._next_request(now)
        except HeadError as error:
            return self._refuse(error)
        if request is None:
            return None
        head, body = request
        self._next = number + 1
        self._partial_since = None
        self._since = now
        if not head.keep_alive:
            self.close_after(number)
        elif self._at >= len(self._input):
            self.more = False
        # A named tuple is made by a function in Python, which takes as long as all of this.
        return _new_tuple(HttpRequest, (number, head, body))

    @property
    def pending(self) -> bool:
        """True if input is left that can be looked at."""
        return self.more and not self.held and not self.full

    @property
    def full(self) -> bool:
        """True if answers have to leave before more is read."""
        return self._next - self.line >= self._unanswered_max

    @property
    def request_bytes(self) -> int:
        """Bytes of input in memory."""
        size = len(self._input) - self._at
        return size if self._body is None else size + len(self._body.content)

    # --- answers ----------------------------------------------------------------------------------

    @property
    def unanswered(self) -> int:
        """Requests whose answers are not in the output."""
        return self._next - self.line

    def closes_after(self, number: int) -> bool:
        """True if the connection closes behind the answer of a request, which says so."""
        if self._draining and self._last is None and number == self._next - 1 and self._head is None:
            self._last = number
            self._drop_input()
            self._note_closed()
        return number == self._last

    def close_after(self, number: int) -> None:
        """Close the connection behind the answer of a request; what follows it is dropped.

        Only for the newest request, or one that is being answered.
        """
        self._last = number
        self.ending = True
        self._drop_input()
        self._note_closed()

    def respond(self, number: int, answer: bytes) -> int:
        """Take a whole answer.

        Returns:
            How many answers are in the output now that were not: this one and those that it held
            up. 0 if it waits itself.
        """
        self.queued_bytes += len(answer)
        if number != self.line:
            self._early[number] = answer
            return 0
        self._output.append(answer)
        self.has_output = True
        self.line = number + 1
        return self._after(number) if self._early or self._continue or self.ending else 1

    def send(self, number: int, piece: bytes) -> None:
        """Take a piece of the answer of the request that has its turn."""
        assert number == self.line, f"the answer {number} is sent before {self.line}"
        self._put(piece)

    def finish(self, number: int, piece: bytes) -> int:
        """Take the last piece of an answer; returns as `respond`."""
        assert number == self.line, f"the answer {number} ends before {self.line}"
        return self.respond(number, piece)

    # --- output -----------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory."""
        size = len(self._input) - self._at + self.queued_bytes
        return size if self._body is None else size + len(self._body.content)

    def take_output(self, most: int) -> bytes:
        """Bytes to be written: all of them, or at least `most` if these are more."""
        if self._unwritten:
            self.set_unwritten(0)
        output = self._output
        if len(output) == 1:
            taken = output.pop()
        elif self.queued_bytes <= most:
            taken = b"".join(output)
            output.clear()
        else:
            taken = b"".join(_first(output, most))
        self.has_output = bool(output)
        self.queued_bytes -= len(taken)
        return taken

    def set_unwritten(self, size: int) -> None:
        """Bytes of earlier output are still in a transport that is full."""
        self.queued_bytes += size - self._unwritten
        self._unwritten = size

    # --- time and the end -------------------------------------------------------------------------

    def tick(self, now: float) -> HttpRefusal | None:
        """Act on the time, unless input waits for this side."""
        options = self._options
        if self._last is not None or self.more or self.full:
            self._since = now
            return None
        if self._partial_since is not None:
            part, limit = ("head", options.head_s) if self._head is None else ("body", options.body_s)
            if limit and now - self._partial_since >= limit:
                return self._refuse(HeadError(408, f"the {part} was not complete within {limit:g} s"))
        elif self.unanswered:
            self._since = now
        elif options.idle_s and now - self._since >= options.idle_s:
            self.close_after(self._next - 1)
        return None

    def announce_drain(self) -> None:
        """Close behind the next answer without a successor."""
        self._draining = self.ending = True

    def drain(self) -> None:
        """Take no new requests, and close behind the answers of those that have begun."""
        self._draining = self.ending = True
        if self._last is None and self._partial_since is None and not self.more:
            self.close_after(self._next - 1)

    def terminate(self) -> None:
        """End now."""
        self._ended = self.closed = True
        self._drop_input()
        self.queued_bytes -= sum(map(len, self._early.values()))
        self._early.clear()

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        assert self.line <= self._next
        assert all(self.line < number < self._next for number in self._early)
        queued = *self._early.values(), *self._output
        assert self.queued_bytes == sum(map(len, queued)) + self._unwritten
        assert self.has_output == bool(self._output)
        assert self.data_expected == (0 if self._body is None else self._body.expected)
        assert 0 <= self._at <= len(self._input)
        assert (self._head is None) == (self._body is None)
        assert self._last is None or self._at == len(self._input)
        assert self.ending == (self._draining or self._last is not None)
        assert self.closed == (self._ended or (self._last is not None and self.line > self._last))

    # --- inside -----------------------------------------------------------------------------------

    def _next_request(self, now: float) -> tuple[RequestHead, bytes] | None:
        """Head and body of the next request, None if it is not complete."""
        if self._body is not None:
            return self._take_body(now)
        source, at = self._input, self._at
        end = source.find(_END, at) + 4
        if end < 4:
            return self._odd_head(now)
        section = source[at:end]
        head = self._heads.get(section)
        if head is None:
            if end - at > self._options.head_bytes or section.startswith(_CRLF):
                return self._odd_head(now)
            head = self._heads.add(section)
        self._at = at = end
        size = head.content_length
        if not size and not head.chunked:
            return head, b""
        most = head.body_bytes_max
        if most is None:
            most = head.body_bytes_max = self._body_bytes_max(head)
        if size is not None:
            if size > most:
                self._head = head
                raise HeadError(413, f"the body has {size} bytes, {most} are allowed")
            if len(source) - at >= size:
                self._at = at + size
                return head, source[at : at + size]
        self._head = head
        self._body = ChunkedBody(most) if size is None else SizedBody(size)
        self._partial_since = None
        if head.expects_continue and at == len(source):
            if self.line == self._next:
                self._put(CONTINUE)
            else:
                self._continue = True
        return self._take_body(now)

    def _odd_head(self, now: float) -> tuple[RequestHead, bytes] | None:
        """A head that is not complete, or too large, or behind an empty line."""
        source, at, most = self._input, self._at, self._options.head_bytes
        if source.startswith(_CRLF, at):  # RFC 9112 §2.2: empty lines are ignored
            while source.startswith(_CRLF, at):
                at += 2
            self._at = at
            if at < len(source):
                return self._next_request(now)
            self.more = False
            return None
        begin = source[at : at + most + 1]
        if begin.count(b"\n") != begin.count(_CRLF) or begin.startswith(b"\n"):
            raise HeadError(400, "a line of a head ends with CRLF")
        if len(begin) > most:
            if _CRLF in begin:
                raise HeadError(431, f"the head has more than {most} bytes")
            raise HeadError(414, f"the request line has more than {most} bytes")
        self._wait_for_more(now)
        return None

    def _take_body(self, now: float) -> tuple[RequestHead, bytes] | None:
        head, body = self._head, self._body
        assert head is not None
        assert body is not None
        source = self._input
        while self._at < self._stop_at and not body.complete:
            at = body.take(source, self._at, len(source))
            if at == self._at:
                self._wait_for_more(now)
                break
            self._at = at
            if body.is_slow:
                self._stop_at = at
        if not body.complete:
            self.data_expected = body.expected
            if self._at >= len(source):
                self._wait_for_more(now)
            return None
        self._head = self._body = None
        self.data_expected = 0
        self._continue = False
        return head, bytes(body.content)

    def _wait_for_more(self, now: float) -> None:
        self.more = False
        if self._partial_since is None:
            self._partial_since = now

    def _refuse(self, error: HeadError) -> HttpRefusal:
        number, head = self._next, self._head
        self._next = number + 1
        self._continue = False
        self._partial_since = None
        self.close_after(number)
        return HttpRefusal(number, error.status, error.text, head)

    def _drop_input(self) -> None:
        self._input, self._at, self.more = b"", 0, False
        self._head = self._body = None
        self.data_expected = 0

    def _after(self, number: int) -> int:
        """Send what waits for the answer of a request; returns as `respond`."""
        while self._early and (early := self._early.pop(self.line, None)) is not None:
            self._output.append(early)
            self.line += 1
        if self._continue and self.line == self._next:
            self._continue = False
            self._put(CONTINUE)
        self._note_closed()
        return self.line - number

    def _put(self, piece: bytes) -> None:
        self._output.append(piece)
        self.has_output = True
        self.queued_bytes += len(piece)

    def _note_closed(self) -> None:
        self.closed = self._ended or (self._last is not None and self.line > self._last)


def _first(pieces: list[bytes], most: int) -> Iterator[bytes]:
    """Take pieces from the front until they have at least `most` bytes."""
    size = count = 0
    for piece in pieces:
        if size >= most:
            break
        size += len(piece)
        count += 1
    taken = pieces[:count]
    del pieces[:count]
    return iter(taken)
