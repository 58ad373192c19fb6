"""Routes by method and path.

As kafka-pixy's router does: a path is compared once it is decoded, so no segment can have a slash;
one that is not in its shortest form is redirected to that; a path that other methods have is
answered 405, with an empty body.
"""

import posixpath
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import quote

from pixy.http1 import RequestHead
from pixy.web.answers import Answer, AnswerHead
from pixy.web.form import BadQuery, unescape
from pixy.web.gate import why_refused
from pixy.web.route_counts import RouteCounts
from pixy.web.style import PLAIN, Style

if TYPE_CHECKING:
    from pixy.web.exchange import Exchange

_KIB = 1 << 10
_NOT_FOUND = PLAIN.render(404, "404 page not found")
_NOT_FOUND = _NOT_FOUND._replace(head=_NOT_FOUND.head.with_field("X-Content-Type-Options", "nosniff"))


class Revocable(Protocol):
    """Work of an exchange that outlives its handler."""

    def cancel(self) -> object:
        """End the work: its client is gone."""


RouteHandler = Callable[["Exchange"], Revocable | None] | Callable[["Exchange"], Awaitable[Answer | None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path with a handler.

    Attributes:
        method: such as GET.
        pattern: a path, in which `{name}` stands for any segment.
        handler: see `pixy.web`.
        body_bytes_max: largest body; a larger one is answered 413.
        style: of errors.
        counts: of its answers.
    """

    method: str
    pattern: str
    handler: RouteHandler
    body_bytes_max: int = 64 * _KIB
    style: Style = PLAIN
    counts: RouteCounts = field(default_factory=RouteCounts, compare=False)

    @property
    def is_coroutine(self) -> bool:
        """True if the handler is one, and needs a task."""
        return iscoroutinefunction(self.handler)


class Match(NamedTuple):
    """The route of a request.

    Attributes:
        parameters: by name in the pattern.
        is_coroutine: see `Route`.
    """

    route: Route
    parameters: Mapping[str, str]
    is_coroutine: bool


class Router:
    """All routes of a port.

    Args:
        routes: of which no two have the same method and pattern.
        styles: of answers to requests without a route, by the beginning of the path; others are
            as of kafka-pixy's router.
    """

    def __init__(self, routes: Iterable[Route], styles: Mapping[str, Style] | None = None) -> None:
        self._styles = styles or {}
        # Routes by method, by the segments of their pattern, by the number of these.
        self._patterns: dict[int, dict[tuple[str, ...], dict[str, Route]]] = {}
        for route in routes:
            segments = tuple(route.pattern.split("/"))
            methods = self._patterns.setdefault(len(segments), {}).setdefault(segments, {})
            assert route.method not in methods, f"{route.method} {route.pattern} has two routes"
            methods[route.method] = route

    @property
    def routes(self) -> list[Route]:
        """All of them, in the order of their patterns' lengths."""
        return [
            route
            for _, patterns in sorted(self._patterns.items())
            for methods in patterns.values()
            for route in methods.values()
        ]

    def match(self, head: RequestHead, hosts: frozenset[str] | None = None) -> Match | Answer:
        """The route of a request, by its head alone, or the answer to one that has none.

        Args:
            hosts: see `WebOptions`.
        """
        try:
            path = unescape(head.path).decode()
        except (BadQuery, UnicodeDecodeError):
            return PLAIN.render(400, "the path is not percent-encoded UTF-8")
        route, parameters, others = self._find(head.method, path)
        refused = why_refused(head, hosts)
        if refused is not None:
            style = PLAIN if route is None else route.style
            return style.render(refused.status, str(refused))
        if route is not None:
            return Match(route, parameters, route.is_coroutine)
        clean = _clean(path)
        if clean != path:
            query = f"?{head.query.decode('ascii', 'replace')}" if head.query else ""
            return Answer(AnswerHead(301, fields=[("Location", quote(clean) + query)]), b"")
        told = next((each for begin, each in self._styles.items() if path.startswith(begin)), None)
        if others:
            allowed = ", ".join(others)
            text = f"{head.method} is not allowed here, expected {allowed}"
            answer = told.render(405, text) if told else Answer(AnswerHead(405), b"")
            return answer._replace(head=answer.head.with_field("Allow", allowed))
        return told.render(404, f"there is no {path}") if told else _NOT_FOUND

    def _find(self, method: str, path: str) -> tuple[Route | None, Mapping[str, str], list[str]]:
        """A route with its parameters, or the methods that the path has."""
        segments = path.split("/")
        others: list[str] = []
        for pattern, methods in self._patterns.get(len(segments), {}).items():
            parameters = _fit(pattern, segments)
            if parameters is None:
                continue
            route = methods.get(method)
            if route is not None:
                return route, parameters, []
            others += methods
        return None, {}, others


def _fit(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    """Parameters of a path, None if it does not fit the pattern."""
    parameters = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            if not segment:
                return None
            parameters[expected[1:-1]] = segment
        elif expected != segment:
            return None
    return parameters


def _clean(path: str) -> str:
    """The shortest form of a path, which keeps a slash at its end."""
    clean = "/" + posixpath.normpath("/" + path).lstrip("/")
    return clean + "/" if path.endswith("/") and clean != "/" else clean
