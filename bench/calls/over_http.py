"""Sync produce and consume with auto-ack over HTTP/1.1, in turns with gRPC on as many connections.

Rates need a quiet machine. The processor time of the daemon per request, all its threads included,
is comparable beside other work as well.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.calls.local import FILLED_TOPIC
from bench.calls.offsets import GROUP, await_commit, end_of, rewind
from bench.kit import processes
from bench.kit.figures import Figure
from bench.kit.load import Level, Load, put_calls, write_body
from pixy.proto import kafkapixy_pb2 as pb

_CONNECTIONS = (1, 32, 128)
_CALLS = {1: 4_000, 32: 30_000, 128: 30_000}
_WARM_UP_CALLS = 2_000
_TOPIC = "produced-over-http"
_CPU_US_WANTED = 22
_PER_SECOND_WANTED = {
    "sync produce": {1: 860, 32: 14_800, 128: 31_000},
    "consume + auto ack": {1: 9_500, 32: 33_000, 128: 35_000},
}
"""1.3 times kafka-pixy's rates for a produce, and its rates for a consume."""


class _Measured(NamedTuple):
    """A load, and the daemon's processor time for each of its calls."""

    per_second: float
    cpu_us: float


Send = Callable[[Level, int], _Measured]


def http_calls(rounds: int, filled: int, fill: Callable[[str, int], Any]) -> list[Figure]:
    """Both requests at each number of connections.

    Args:
        filled: messages to consume.
        fill: makes a directory of data with as many messages.
    """
    figures = []
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        fill(str(folder / "data"), filled)
        with processes.daemon(folder, {"tcp_addr": "127.0.0.1:0"}, core=processes.server_core()) as daemon:
            for kind, sides in {
                "sync produce": _producers(folder, daemon),
                "consume + auto ack": _consumers(folder, daemon),
            }.items():
                for connections in _CONNECTIONS:
                    figures += _in_turns(daemon, kind, connections, sides, rounds)
    return figures


def _in_turns(
    daemon: processes.Server, kind: str, connections: int, sides: Mapping[str, Send], rounds: int
) -> list[Figure]:
    level, calls = Level(connections, 1), _CALLS[connections]
    found: dict[str, list[_Measured]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, send in sides.items():
            send(level, min(calls, _WARM_UP_CALLS))
            found[side].append(send(level, calls))
    figures = []
    for side, pairs in found.items():
        rate, cpu_us = (statistics.median(each) for each in zip(*pairs, strict=True))
        name = f"{kind} over {side}, {connections} connections"
        is_http = side == "HTTP"
        wanted = _PER_SECOND_WANTED[kind][connections] if is_http else 0
        judges_cpu = is_http and connections == max(_CONNECTIONS)
        figures += [
            Figure(
                name,
                rate,
                "/s",
                target=f">= {wanted:,}/s" if wanted else "",
                met=rate >= wanted if wanted else None,
            ),
            Figure(
                f"{name}, processor time",
                cpu_us,
                "us",
                target=f"<= {_CPU_US_WANTED} us" if judges_cpu else "",
                met=cpu_us <= _CPU_US_WANTED if judges_cpu else None,
            ),
        ]
    return figures


def _measured(daemon: processes.Server, load: Callable[[int], Load], calls: int) -> _Measured:
    """Measure calls alone: the questions that verify their count take time of the daemon, too."""
    used = daemon.cpu_seconds()
    per_second = load(calls).per_second
    return _Measured(per_second, 1e6 * (daemon.cpu_seconds() - used) / calls)


def _producers(folder: Path, daemon: processes.Server) -> Mapping[str, Send]:
    message = folder / "message"
    message.write_bytes(bytes(100))
    request = pb.ProdRq(topic=_TOPIC, key_undefined=True, message=bytes(100)).SerializeToString()
    framed = write_body(folder / "produce", request)
    url = f"http://{daemon.http_address}/topics/{_TOPIC}/messages?sync"

    def over_http(level: Level, calls: int) -> _Measured:
        plain = {"content-type": "text/plain"}
        return _measured(daemon, lambda n: put_calls(url, level, n, message, plain, http1=True), calls)

    def over_grpc(level: Level, calls: int) -> _Measured:
        before, method = end_of(daemon, _TOPIC), f"http://{daemon.address}/KafkaPixy/Produce"
        load = _measured(daemon, lambda n: put_calls(method, level, n, framed), calls)
        written = end_of(daemon, _TOPIC) - before
        if written < calls:
            raise RuntimeError(f"{calls} produces were answered, but only {written} messages are there")
        return load

    return {"HTTP": over_http, "gRPC": over_grpc}


def _consumers(folder: Path, daemon: processes.Server) -> Mapping[str, Send]:
    request = pb.ConsNAckRq(topic=FILLED_TOPIC, group=GROUP, auto_ack=True).SerializeToString()
    framed = write_body(folder / "consume", request)
    url = f"http://{daemon.http_address}/topics/{FILLED_TOPIC}/messages?group={GROUP}"

    def over_http(level: Level, calls: int) -> _Measured:
        return _measured(daemon, lambda n: put_calls(url, level, n, headers={}, http1=True), calls)

    def over_grpc(level: Level, calls: int) -> _Measured:
        method = f"http://{daemon.address}/KafkaPixy/ConsumeNAck"
        return _measured(daemon, lambda n: put_calls(method, level, n, framed), calls)

    def committed(send: Send) -> Send:
        def checked(level: Level, calls: int) -> _Measured:
            rewind(daemon)
            load = send(level, calls)
            await_commit(daemon, calls)
            return load

        return checked

    return {"HTTP": committed(over_http), "gRPC": committed(over_grpc)}
