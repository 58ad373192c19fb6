"""Samples of the servers for clients: connections, and calls by method."""

from collections.abc import Collection, Iterable

from pixy.metrics import Registry, Sample
from pixy.proxy import Proxy
from pixy.rpc import Method, Status
from pixy.serving import Server
from pixy.web import Route
from pixy.wire import ServedApi


async def add_server(registry: Registry, server: Server) -> None:
    """Add the numbers of a server."""
    counters = await server.counters_in_steps()
    numbers = {
        "pixy_connections": counters.open,
        "pixy_connections_accepted_total": counters.accepted,
        "pixy_connections_refused_total": counters.refused,
        "pixy_handshakes_failed_total": counters.handshakes_failed,
        "pixy_logins_failed_total": counters.logins_failed,
        "pixy_requests_rejected_total": counters.rejected,
        "pixy_received_bytes_total": counters.bytes_in,
        "pixy_sent_bytes_total": counters.bytes_out,
        "pixy_fair_waits_total": counters.waits,
        "pixy_rpc_open_calls": server.open_calls,
    }
    for name, number in numbers.items():
        registry.add(name, lambda number=number: (Sample((), number),))  # type: ignore[misc]


def add_memory(registry: Registry, server: Server, proxies: Collection[Proxy]) -> None:
    """Add the bytes that connections and clusters hold."""
    counts = [proxy.counts() for proxy in proxies]
    numbers = {"connections": server.memory.total} | {
        use: sum(each[name] for each in counts)
        for use, name in {
            "fetched": "fetched_bytes",
            "unpacked": "unpacked_bytes",
            "produce": "buffered_bytes",
            "append": "append_bytes",
            "stage": "stage_bytes",
        }.items()
    }
    registry.add("pixy_memory_bytes", lambda: (Sample((use,), number) for use, number in numbers.items()))


def add_methods(registry: Registry, methods: Collection[Method]) -> None:
    """Add the numbers of methods that were called."""
    called = [method for method in methods if sum(method.counts.durations.counts) or method.counts.ended]
    registry.add("pixy_rpc_requests_total", lambda: (sample for method in called for sample in _ends(method)))
    registry.add(
        "pixy_rpc_duration_seconds",
        lambda: (Sample((method.name,), method.counts.durations) for method in called),
    )


def add_routes(registry: Registry, routes: Collection[Route]) -> None:
    """Add the numbers of routes of HTTP that were called."""
    called = [route for route in routes if route.counts.ended]
    registry.add(
        "pixy_http_requests_total",
        lambda: (
            Sample((route.pattern, route.method, str(status)), count)
            for route in called
            for status, count in sorted(route.counts.ended.items())
        ),
    )
    registry.add(
        "pixy_http_duration_seconds",
        lambda: (Sample((route.pattern, route.method), route.counts.durations) for route in called),
    )


def add_kafka_apis(registry: Registry, apis: Collection[ServedApi]) -> None:
    """Add the numbers of requests to APIs of Kafka's protocol."""
    registry.add(
        "pixy_kafka_requests_total",
        lambda: (
            Sample((api.messages.name, str(version)), count)
            for api in apis
            for version, count in sorted(api.requests.items())
        ),
    )


def _ends(method: Method) -> Iterable[Sample]:
    counts = method.counts
    ended = dict(counts.ended)
    ended[Status.OK] = ended.get(Status.OK, 0) + sum(counts.durations.counts)
    for code, count in sorted(ended.items()):
        if count:
            yield Sample((method.name, _name(code)), count)


def _name(code: int) -> str:
    return Status(code).name if code in set(Status) else "UNKNOWN"
