"""The routes of the management listener, on a real server."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from pixy import __version__
from pixy.management.routes import ManagementRoutes
from pixy.metrics import Registry
from tests.fakes.waiting import until
from tests.fakes.web import WebClient, open_client, open_web


class Checks:
    """Health whose reasons a test sets."""

    def __init__(self) -> None:
        self.reasons: dict[str, Mapping[str, str]] = {"livez": {"faults": ""}, "readyz": {}, "startupz": {}}

    def live(self) -> Mapping[str, str]:
        return self.reasons["livez"]

    def ready(self) -> Mapping[str, str]:
        return self.reasons["readyz"]

    def started(self) -> Mapping[str, str]:
        return self.reasons["startupz"]


@asynccontextmanager
async def serving(health: Checks | None = None, *, debug: bool = True) -> AsyncIterator[WebClient]:
    async def collect() -> Registry:
        registry = Registry()
        registry.number("pixy_connections", lambda: 3)
        return registry

    routes = ManagementRoutes(health or Checks(), collect, debug=debug).routes()
    async with open_web(routes=routes) as web, open_client(web.address) as client:
        yield client
        assert web.faults == []


@pytest.mark.parametrize("path", ["livez", "readyz", "startupz"])
async def test_a_probe_says_which_check_fails_and_why(path: str) -> None:
    health = Checks()
    async with serving(health) as client:
        health.reasons[path] = {"faults": "", "cluster:a": ""}
        answer = await client.call("GET", f"/{path}")
        assert (answer.status, answer.fields["content-type"]) == (200, "application/json")
        assert json.loads(answer.body) == {"status": "ok", "checks": {"faults": "ok", "cluster:a": "ok"}}
        health.reasons[path] = {"faults": "", "cluster:a": "waits for node 2"}
        answer = await client.call("GET", f"/{path}")
        assert answer.status == 503
        assert json.loads(answer.body) == {
            "status": "failed",
            "checks": {"faults": "ok", "cluster:a": "waits for node 2"},
        }


async def test_the_version_is_told() -> None:
    async with serving() as client:
        assert json.loads((await client.call("GET", "/version")).body)["version"] == __version__


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", b"pixy_connections 3\n"),
        (
            "application/openmetrics-text",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            b"# EOF\n",
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_metrics_come_in_the_format_and_encoding_that_is_accepted(
    accept: str, content_type: str, end: bytes, encoding: str
) -> None:
    async with serving() as client:
        answer = await client.call(
            "GET", "/metrics", None, f"Accept: {accept}", f"Accept-Encoding: {encoding}"
        )
        assert (answer.status, answer.fields["content-type"]) == (200, content_type)
        assert answer.fields.get("content-encoding", "identity") == encoding
        body = gzip.decompress(answer.body) if encoding == "gzip" else answer.body
        assert body.endswith(end)
        assert answer.fields["vary"] == "Accept, Accept-Encoding"


async def test_tasks_are_counted_by_kind_with_the_place_where_they_wait() -> None:
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    tasks = [asyncio.create_task(waits(), name="a poll") for _ in range(3)]
    await asyncio.sleep(0)
    async with serving() as client:
        text = (await client.call("GET", "/debug/tasks")).text
        (line,) = (line for line in text.splitlines() if "a poll" in line)
        assert line.split()[0] == "3"
        assert "test_routes.py:" in line
        stacks = (await client.call("GET", "/debug/stacks")).text
        assert "thread MainThread\n" in stacks
        assert "3 tasks\n" in stacks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_memory_is_told_by_type() -> None:
    class Remembered:
        """A type of this test."""

    kept = [Remembered() for _ in range(10)]
    async with serving() as client:
        text = (await client.call("GET", "/debug/memory")).text
        (line,) = (line for line in text.splitlines() if "Remembered" in line)
        assert int(line.split()[1]) == len(kept)


@pytest.mark.slow
async def test_a_profile_has_the_stacks_that_use_processor_time() -> None:
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=burn, name="burner")
    thread.start()
    try:
        async with serving() as client:
            answer = await client.call("GET", "/debug/profile?seconds=0.3")
    finally:
        stop.set()
        thread.join()
    used = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in answer.text.splitlines()}
    burnt = sum(us for stack, us in used.items() if stack.startswith("burner;") and "burn" in stack)
    assert 10_000 < burnt < 3_000_000


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "x", "nan", "inf", ""])
async def test_a_profile_is_bounded(seconds: str) -> None:
    async with serving() as client:
        assert (await client.call("GET", f"/debug/profile?seconds={seconds}")).status == 400


@pytest.mark.slow
async def test_one_profile_is_made_at_a_time_and_ends_with_its_client() -> None:
    routes = ManagementRoutes(Checks(), _nothing).routes()
    async with open_web(routes=routes) as web, open_client(web.address) as other:
        async with open_client(web.address) as client:
            client.request("GET", "/debug/profile?seconds=60")
            await until(lambda: web.server.counters.calls == 1)
            answer = await other.call("GET", "/debug/profile?seconds=1")
            assert (answer.status, answer.text) == (429, "a profile is being made for another request\n")
        await until(lambda: len(web.links) == 1)
        assert (await other.call("GET", "/debug/profile?seconds=0.01")).status == 200


async def _nothing() -> Registry:
    return Registry()


async def test_debug_can_be_switched_off() -> None:
    async with serving(debug=False) as client:
        assert (await client.call("GET", "/debug/tasks")).status == 404
        assert (await client.call("GET", "/livez")).status == 200
