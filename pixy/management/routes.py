"""Routes of the management listener.

    /metrics         metrics for Prometheus, in its text format or in OpenMetrics
    /livez           200 while the event loop runs, and nothing is broken
    /readyz          200 while the daemon takes requests for all clusters, else 503, with reasons
    /startupz        200 once it was ready for the first time, else 503, with reasons
    /version         releases
    /debug/tasks     kinds of tasks
    /debug/stacks    stacks of threads and tasks
    /debug/profile   processor time by stack, of `?seconds=`
    /debug/memory    objects by type

Nothing can be changed here. What is dear is done for one request at a time.
"""

import asyncio
import json
import platform
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from pixy import __version__
from pixy.management.cpu_profile import profile
from pixy.management.memory_types import memory_text
from pixy.management.one_at_a_time import OneAtATime
from pixy.management.tasks import stacks_text, tasks_text
from pixy.metrics import CONTENT_TYPES, Exposition, Format, Registry, accepts_gzip, accepts_openmetrics
from pixy.web import JSON, TEXT, Answer, AnswerHead, Exchange, HttpError, Route

_PROFILE_S = 10.0
_PROFILE_S_MAX = 60.0


class HealthChecks(Protocol):
    """Health of the daemon, as reasons by check; an empty reason is a check that passes."""

    def live(self) -> Mapping[str, str]: ...
    def ready(self) -> Mapping[str, str]: ...
    def started(self) -> Mapping[str, str]: ...


class ManagementRoutes:
    """Handlers of the routes.

    Args:
        health: of the daemon.
        collect: makes the samples of a scrape.
        debug: serve /debug too.
    """

    def __init__(
        self, health: HealthChecks, collect: Callable[[], Awaitable[Registry]], *, debug: bool = True
    ) -> None:
        self._health = health
        self._collect = collect
        self._debug = debug
        self._walks = OneAtATime("a list of tasks or objects")
        self._profiles = OneAtATime("a profile")

    def routes(self) -> list[Route]:
        """All routes."""
        routes = [
            Route("GET", "/metrics", self.metrics),
            Route("GET", "/livez", self.livez),
            Route("GET", "/readyz", self.readyz),
            Route("GET", "/startupz", self.startupz),
            Route("GET", "/version", self.version),
        ]
        if self._debug:
            routes += [
                Route("GET", "/debug/tasks", self.tasks),
                Route("GET", "/debug/stacks", self.stacks),
                Route("GET", "/debug/profile", self.profile),
                Route("GET", "/debug/memory", self.memory),
            ]
        return routes

    async def metrics(self, exchange: Exchange) -> None:
        """The exposition, a piece in each iteration of the event loop."""
        accept, encoding = exchange.head.get(b"accept"), exchange.head.get(b"accept-encoding")
        is_open = accepts_openmetrics((accept or b"").decode("latin-1"))
        packs = accepts_gzip((encoding or b"").decode("latin-1"))
        format = Format.OPENMETRICS if is_open else Format.PROMETHEUS
        registry = await self._collect()
        fields = [("Vary", "Accept, Accept-Encoding")]
        if packs:
            fields.append(("Content-Encoding", "gzip"))
        await exchange.begin(AnswerHead(200, CONTENT_TYPES[format], fields))
        for piece in Exposition(registry, format, gzip=packs).pieces():
            if piece:
                await exchange.send(piece)
            await asyncio.sleep(0)
        exchange.end()

    def livez(self, exchange: Exchange) -> None:
        """See `pixy.management.routes`."""
        exchange.answer(*_checks(self._health.live()))

    def readyz(self, exchange: Exchange) -> None:
        """See `pixy.management.routes`."""
        exchange.answer(*_checks(self._health.ready()))

    def startupz(self, exchange: Exchange) -> None:
        """See `pixy.management.routes`."""
        exchange.answer(*_checks(self._health.started()))

    def version(self, exchange: Exchange) -> None:
        """See `pixy.management.routes`."""
        exchange.answer(JSON, _json({"version": __version__, "python": platform.python_version()}))

    async def tasks(self, exchange: Exchange) -> Answer:
        """See `pixy.management.routes`."""
        with self._walks.running():
            return Answer(TEXT, (await tasks_text()).encode())

    async def stacks(self, exchange: Exchange) -> Answer:
        """See `pixy.management.routes`."""
        with self._walks.running():
            return Answer(TEXT, (await stacks_text()).encode())

    async def memory(self, exchange: Exchange) -> Answer:
        """See `pixy.management.routes`."""
        with self._walks.running():
            return Answer(TEXT, (await memory_text()).encode())

    async def profile(self, exchange: Exchange) -> Answer:
        """See `pixy.management.routes`. It ends when the client goes."""
        seconds = _seconds(exchange)
        with self._profiles.running():
            stop = threading.Event()
            try:
                text = await asyncio.to_thread(profile, seconds, stop)
            finally:
                stop.set()
        return Answer(TEXT, text.encode())


def _checks(checks: Mapping[str, str]) -> Answer:
    failed = any(checks.values())
    body = {
        "status": "failed" if failed else "ok",
        "checks": {name: reason or "ok" for name, reason in checks.items()},
    }
    head = AnswerHead(503, "application/json") if failed else JSON
    return Answer(head, _json(body))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _seconds(exchange: Exchange) -> float:
    given = exchange.query.first("seconds")
    if given is None:
        return _PROFILE_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _PROFILE_S_MAX:
        text = ascii(given.decode("latin-1"))
        raise HttpError(400, f"seconds is {text}, expected a number above 0, and {_PROFILE_S_MAX:g} at most")
    return seconds
