"""Errors as answers: the status of an error, and the style in which a route tells it."""

from collections.abc import Callable
from dataclasses import dataclass

from pixy.errors import PixyError
from pixy.web.answers import Answer, AnswerHead


class HttpError(Exception):
    """An error with its status.

    Args:
        status: of HTTP.
        text: for the client.
        limit: the limit that was reached, for the log; empty for an error of another kind.
    """

    def __init__(self, status: int, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.limit = limit


def status_of(error: Exception) -> HttpError | None:
    """An error that was raised on purpose with its status, None for a bug."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, PixyError):
        return HttpError(error.http_status, str(error), error.limit)
    return None


@dataclass(frozen=True, slots=True)
class Style:
    """The way in which a route tells errors.

    Attributes:
        render: the answer with a status and a text.
        translate: the status of an error, None for a bug.
    """

    render: Callable[[int, str], Answer]
    translate: Callable[[Exception], HttpError | None] = status_of


def _plain(status: int, text: str) -> Answer:
    return Answer(AnswerHead(status, "text/plain; charset=utf-8"), f"{text}\n".encode())


PLAIN = Style(_plain)
"""The text alone."""
