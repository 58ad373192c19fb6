"""Errors as problem details (RFC 9457), of a whole request or of one of its records."""

import json
from http import HTTPStatus
from typing import Any

from pixy.faults import internal_error
from pixy.web import Answer, AnswerHead, HttpError, Style, status_of


def _problem(status: int, detail: str) -> dict[str, Any]:
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


def problem_of(error: Exception) -> dict[str, Any]:
    """The problem of one record."""
    told = status_of(error) or HttpError(500, str(internal_error(error)))
    return _problem(told.status, str(told))


def _render(status: int, text: str) -> Answer:
    body = json.dumps(_problem(status, text), ensure_ascii=False).encode("utf-8", "replace")
    return Answer(AnswerHead(status, "application/problem+json"), body + b"\n")


PROBLEM = Style(_render)
"""The style of all routes of `/v1`."""
