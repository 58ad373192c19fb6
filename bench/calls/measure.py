"""Measurements: one function per name that `--only` accepts. Each returns rows of the table."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from bench.calls.local import FILLED_TOPIC
from bench.calls.offsets import CALL_SECONDS_MAX, GROUP, await_commit, end_of, rewind
from bench.calls.over_http import http_calls
from bench.grpc import server as grpc_server
from bench.kit import processes
from bench.kit.figures import Figure
from bench.kit.load import LEVELS, Level, Load, put_load, write_body
from bench.nats.server import Nats, find_nats, nats
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

_RATIOS_WANTED = {
    "sync produce": {32: 3.2, 128: 5.5, 512: 8.0},
    "consume + auto ack": {32: 2.7, 128: 7.3, 512: 8.9},
}
_PER_SECOND_WANTED = {
    "sync produce": {32: 35_000, 128: 60_000, 512: 90_000},
    "consume + auto ack": {1: 10_000, 32: 30_000, 128: 80_000, 512: 98_000},
}
"""The lower of the two figures counts: the absolute ones are of a machine with 11 000 no-op calls
per second at 32 and more in flight.
"""
_MEAN_MS_WANTED = 0.32
_LOCAL_WANTED = 120_000
_READY_SECONDS_WANTED = 0.7
_IDLE_MB_WANTED = 80
_IDLE_PERCENT_WANTED = 0.5
_GROWTH_MB_WANTED = 5
_METRICS_PERCENT_WANTED = 1
_PRODUCE_TOPIC = "produced"
_ROWS = {
    "sync produce": "Produce, answered after the sync",
    "consume + auto ack": "ConsumeNAck with auto-ack",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """Amount of work. The default takes less than five minutes."""

    rounds: int = 3
    load_seconds: float = 1.2
    local_seconds: float = 4.0
    filled: int = 300_000
    nats_filled: int = 1_000_000
    idle_seconds: float = 6.0
    metrics_seconds: float = 2.0
    growth: tuple[int, int] = (300_000, 1_000_000)


FULL = Scale(
    rounds=7,
    load_seconds=3.0,
    local_seconds=10.0,
    filled=2_000_000,
    nats_filled=4_000_000,
    idle_seconds=20.0,
    metrics_seconds=10.0,
    growth=(1_000_000, 10_000_000),
)


# --- the gRPC server, beside a no-op server -------------------------------------------------------


def grpc_calls(scale: Scale) -> list[Figure]:
    """Produce and ConsumeNAck on a daemon, alternating with the no-op server; each has a core of
    its own.
    """
    core = processes.server_core()
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        _local("fill", str(folder / "data"), str(scale.filled))
        with ExitStack() as stack:
            nothing = stack.enter_context(processes.noop(core))
            daemon = stack.enter_context(processes.daemon(folder, core=core))
            binary = find_nats()
            other = None
            if binary is not None:
                other = stack.enter_context(nats(binary, folder, core, scale.nats_filled))
            return [
                *_produce(scale, folder, nothing, daemon, other),
                *_consume(scale, folder, nothing, daemon, other),
            ]


def _produce(
    scale: Scale, folder: Path, nothing: processes.Server, daemon: processes.Server, other: Nats | None
) -> list[Figure]:
    request = pb.ProdRq(topic=_PRODUCE_TOPIC, key_undefined=True, message=bytes(100))
    body = write_body(folder / "produce", request.SerializeToString())
    put_load(daemon.address, "Produce", body, LEVELS[0], 0.2)  # creates the topic

    def load(level: Level) -> Load:
        before = end_of(daemon, _PRODUCE_TOPIC)
        measured = put_load(daemon.address, "Produce", body, level, scale.load_seconds)
        # h2load sees no gRPC status: the messages that it counts as answered must be in the log.
        written = end_of(daemon, _PRODUCE_TOPIC) - before
        if written < measured.done:
            raise RuntimeError(
                f"{measured.done} produces were answered, but only {written} messages are there"
            )
        return measured

    beside = None if other is None else other.publish
    return _in_turns(scale, "sync produce", body, nothing, load, beside)


def _consume(
    scale: Scale, folder: Path, nothing: processes.Server, daemon: processes.Server, other: Nats | None
) -> list[Figure]:
    request = pb.ConsNAckRq(topic=FILLED_TOPIC, group=GROUP, auto_ack=True)
    body = write_body(folder / "consume", request.SerializeToString())

    def load(level: Level) -> Load:
        rewind(daemon)
        measured = put_load(daemon.address, "ConsumeNAck", body, level, scale.load_seconds)
        await_commit(daemon, measured.done)
        return measured

    beside = None if other is None else other.pull
    return _in_turns(scale, "consume + auto ack", body, nothing, load, beside)


def _in_turns(
    scale: Scale,
    name: str,
    body: Path,
    nothing: processes.Server,
    load: Callable[[Level], Load],
    beside: Callable[[Level, float], Load] | None,
) -> list[Figure]:
    figures = []
    method = "Produce" if name == "sync produce" else "ConsumeNAck"
    for level in LEVELS:
        reference, measured, others = [], [], []
        for _ in range(scale.rounds):
            reference.append(put_load(nothing.address, method, body, level, scale.load_seconds))
            measured.append(load(level))
            if beside is not None:
                others.append(beside(level, scale.load_seconds))
        figures += _figures(name, level, reference, measured, others)
    return figures


def _figures(
    name: str, level: Level, reference: list[Load], measured: list[Load], others: list[Load]
) -> list[Figure]:
    ratio = statistics.median(b.per_second / a.per_second for a, b in zip(reference, measured, strict=True))
    value = statistics.median(one.per_second for one in measured)
    per_second = _PER_SECOND_WANTED[name].get(level.in_flight)
    wanted_ratio = _RATIOS_WANTED.get(name, {}).get(level.in_flight)
    targets = [f">= {per_second:,}/s"] if per_second is not None else []
    targets += [f"ratio >= {wanted_ratio}"] if wanted_ratio is not None else []
    met = (per_second is not None and value >= per_second) or (
        wanted_ratio is not None and ratio >= wanted_ratio
    )
    figure = Figure(
        name=f"{name}, {level.in_flight} in flight",
        value=value,
        unit="/s",
        reference=statistics.median(one.per_second for one in reference),
        ratio=ratio,
        target=" or ".join(targets),
        met=met if targets else None,
        nats=statistics.median(one.per_second for one in others) if others else None,
        row=_ROWS[name],
        in_flight=level.in_flight,
    )
    if level.in_flight > 1 or name != "sync produce":
        return [figure]
    mean = statistics.median(one.mean_ms for one in measured)
    latency = Figure(
        name=f"{name}, mean at 1 in flight",
        value=mean,
        unit="ms",
        reference=statistics.median(one.mean_ms for one in reference),
        target=f"<= {_MEAN_MS_WANTED} ms",
        met=mean <= _MEAN_MS_WANTED,
        nats=statistics.median(one.mean_ms for one in others) if others else None,
    )
    return [figure, latency]


# --- without the network --------------------------------------------------------------------------


def no_network(scale: Scale) -> list[Figure]:
    """A proxy with 512 requests in flight, on one core."""
    rates = _local("speed", str(scale.local_seconds), core=processes.server_core())
    return [
        Figure(
            name=f"{name}, no network, one core",
            value=rate,
            unit="/s",
            target=f">= {_LOCAL_WANTED:,}/s",
            met=rate >= _LOCAL_WANTED,
        )
        for name, rate in rates.items()
    ]


def _local(*arguments: str, core: int | None = None) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.calls.local", *arguments]
    command = command if core is None else processes.pinned(core, command)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


# --- the process ----------------------------------------------------------------------------------


def ready(scale: Scale) -> list[Figure]:
    """Time from the start of the process to its ready line, on an empty directory."""
    times = []
    for _ in range(5):
        with (
            tempfile.TemporaryDirectory(prefix="pixy-bench-") as name,
            processes.daemon(Path(name)) as daemon,
        ):
            times.append(daemon.ready_seconds)
    seconds = statistics.median(times)
    return [
        Figure(
            name="ready on an empty directory",
            value=seconds,
            unit="s",
            target=f"<= {_READY_SECONDS_WANTED} s",
            met=seconds <= _READY_SECONDS_WANTED,
        )
    ]


def idle(scale: Scale) -> list[Figure]:
    """Memory and processor time of an idle daemon with 100 partitions."""
    config = {"proxies": {"default": {"default_partitions": 100}}}
    with (
        tempfile.TemporaryDirectory(prefix="pixy-bench-") as name,
        processes.daemon(Path(name), config) as daemon,
    ):
        with grpc.insecure_channel(daemon.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            request = pb.ProdRq(topic="t", key_undefined=True, message=bytes(100))
            for _ in range(300):
                KafkaPixyStub(channel).Produce(request, timeout=CALL_SECONDS_MAX)
        time.sleep(scale.idle_seconds)  # writes are still synced in the background: not idle yet
        before = daemon.cpu_seconds()
        time.sleep(scale.idle_seconds)
        percent = 100 * (daemon.cpu_seconds() - before) / scale.idle_seconds
        megabytes = daemon.rss_bytes() / 1e6
    return [
        Figure(
            "idle with 100 partitions, memory",
            megabytes,
            "MB",
            target=f"<= {_IDLE_MB_WANTED} MB",
            met=megabytes <= _IDLE_MB_WANTED,
        ),
        Figure(
            "idle with 100 partitions, one core",
            percent,
            "%",
            target=f"<= {_IDLE_PERCENT_WANTED} %",
            met=percent <= _IDLE_PERCENT_WANTED,
        ),
    ]


def growth(scale: Scale) -> list[Figure]:
    """Growth of memory with stored messages."""
    first, second = scale.growth
    sizes = _local("growth", str(first), str(second))
    megabytes = (sizes["second"] - sizes["first"]) / 1e6
    return [
        Figure(
            f"memory, from {first / 1e6:g} M to {second / 1e6:g} M messages",
            megabytes,
            "MB more",
            target=f"<= {_GROWTH_MB_WANTED} MB",
            met=megabytes <= _GROWTH_MB_WANTED,
        )
    ]


def _http_calls(scale: Scale) -> list[Figure]:
    return http_calls(scale.rounds, scale.filled, lambda folder, count: _local("fill", folder, str(count)))


def metrics_cost(scale: Scale) -> list[Figure]:
    """Share of the counters of `/metrics` in the processor time of a Produce with 128 in flight."""
    command = [sys.executable, "-m", "bench.calls.metrics_cost", str(scale.metrics_seconds)]
    done = subprocess.run(
        processes.pinned(processes.server_core(), command), check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout)
    percent = 100 * found["counters_us"] / found["message_us"]
    return [
        Figure(
            "counters of /metrics, of a Produce with 128 in flight",
            percent,
            "%",
            target=f"<= {_METRICS_PERCENT_WANTED} %",
            met=percent <= _METRICS_PERCENT_WANTED,
        )
    ]


MEASURES: dict[str, Callable[[Scale], list[Figure]]] = {
    "grpc": grpc_calls,
    "http": _http_calls,
    "no-op": lambda scale: grpc_server.noop_calls(scale.rounds, scale.load_seconds),
    "tls": lambda scale: grpc_server.tls(scale.rounds, scale.load_seconds),
    "deadlines": lambda scale: grpc_server.deadlines(scale.rounds, scale.load_seconds),
    "connections": lambda scale: grpc_server.idle_connections(),
    "no-network": no_network,
    "ready": ready,
    "idle": idle,
    "metrics": metrics_cost,
    "growth": growth,
}
