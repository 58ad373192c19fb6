"""Counts of the answers of a route, as clients of a real server cause them."""

from pixy.web.route_counts import GONE, RouteCounts
from tests.fakes.waiting import until
from tests.fakes.web import open_client, open_web


async def test_answers_are_counted_by_status_and_timed_unless_they_are_errors() -> None:
    async with open_web() as web:
        routes = web.routes()
    async with open_web(routes=routes) as served, open_client(served.address) as client:
        for path, status in (("/echo/a", 200), ("/echo/b", 200), ("/echo/fail", 418), ("/echo/bug", 500)):
            assert (await client.call("GET", path)).status == status
        assert (await client.call("GET", "/stream/3/10")).status == 200
        counts = {(route.method, route.pattern): route.counts for route in routes}
        assert counts["GET", "/echo/{word}"].ended == {200: 2, 418: 1, 500: 1}
        assert sum(counts["GET", "/echo/{word}"].durations.counts) == 2
        assert counts["POST", "/echo/{word}"].ended == {}
        assert counts["GET", "/stream/{count}/{size}"].ended == {200: 1}


async def test_a_request_whose_client_has_gone_is_counted() -> None:
    async with open_web() as web:
        routes = web.routes()
    async with open_web(routes=routes) as served:
        async with open_client(served.address) as client:
            client.request("GET", "/wait")
            await until(lambda: served.server.counters.calls)
        (counts,) = (route.counts for route in routes if route.pattern == "/wait")
        await until(lambda: counts.ended == {GONE: 1})


def test_one_answer_in_sixteen_of_a_busy_route_is_timed_for_all() -> None:
    counts, now = RouteCounts(), iter(range(1000))
    for _ in range(160):
        counts.count(200, 0.0, lambda: float(next(now)))
    assert counts.ended == {200: 160}
    assert sum(counts.durations.counts) == 160
    assert next(now) == 16 + 9
