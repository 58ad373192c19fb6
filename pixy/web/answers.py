"""Answers: a status with header fields, and a body."""

from collections.abc import Iterable
from email.utils import formatdate
from math import inf
from typing import NamedTuple

from pixy.clock import Clock
from pixy.http1 import status_line


class AnswerHead:
    """Status line and header fields of answers, but for those of each one: Date, Content-Length,
    Connection. Made once for many answers.

    Args:
        status: of HTTP.
        content_type: None for none.
        fields: further ones, names and values.
    """

    __slots__ = ("encoded", "status")

    def __init__(
        self, status: int, content_type: str | None = None, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.status = status
        if content_type is not None:
            fields = [("Content-Type", content_type), *fields]
        self.encoded = b"".join((status_line(status), *(_line(*each) for each in fields)))

    def with_field(self, name: str, value: str) -> "AnswerHead":
        """The same with one more field."""
        head = AnswerHead(self.status)
        head.encoded = self.encoded + _line(name, value)
        return head


def _line(name: str, value: str) -> bytes:
    assert value.isprintable(), f"{name} has a character that ends a header field"
    return f"{name}: {value}\r\n".encode()


class Answer(NamedTuple):
    """A whole answer."""

    head: AnswerHead
    body: bytes


class DateField:
    """The header field Date, which changes once a second."""

    __slots__ = ("_clock", "_line", "_monotonic", "_until")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic
        # The end of the second of `_line`, on the monotonic clock.
        self._until = -inf
        self._line = b""

    def line(self) -> bytes:
        """The field with its CRLF."""
        now = self._monotonic()
        if now >= self._until:
            second, ms = divmod(self._clock.wall_ms(), 1000)
            self._until = now + (1000 - ms) / 1000
            self._line = b"Date: %s\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


JSON = AnswerHead(200, "application/json")
TEXT = AnswerHead(200, "text/plain; charset=utf-8")
