"""What is measured, one function for each name that `--only` takes. Each gives lines of the table."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from bench import processes
from bench.figures import Figure
from bench.load import LEVELS, Level, Load, put_load, write_body
from bench.local import FILLED_TOPIC
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

__all__ = ["FULL", "MEASURES", "Scale"]

_CALL_SECONDS_MAX = 30.0
_RATIO_WANTED = 0.6
_MEAN_MS_WANTED = 0.8
_LOCAL_WANTED = 120_000
_READY_SECONDS_WANTED = 0.7
_IDLE_MB_WANTED = 80
_IDLE_PERCENT_WANTED = 0.5
_GROWTH_MB_WANTED = 5
_PRODUCE_TOPIC = "produced"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to do. The default fits into three minutes."""

    rounds: int = 3
    load_seconds: float = 1.2
    local_seconds: float = 4.0
    filled: int = 300_000
    idle_seconds: float = 6.0
    growth: tuple[int, int] = (300_000, 1_000_000)


FULL = Scale(
    rounds=7,
    load_seconds=3.0,
    local_seconds=10.0,
    filled=2_000_000,
    idle_seconds=20.0,
    growth=(1_000_000, 10_000_000),
)


# --- the gRPC door, beside a server that does nothing -------------------------------------------------------------


def grpc_door(scale: Scale) -> list[Figure]:
    """Produce and ConsumeNAck through a daemon, in turns with the no-op server; each has a core for itself."""
    core = processes.server_core()
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        _local("fill", str(folder / "data"), str(scale.filled))
        with processes.noop(core) as nothing, processes.daemon(folder, core=core) as daemon:
            return [*_produce(scale, folder, nothing, daemon), *_consume(scale, folder, nothing, daemon)]


def _produce(scale: Scale, folder: Path, nothing: processes.Server, daemon: processes.Server) -> list[Figure]:
    request = pb.ProdRq(topic=_PRODUCE_TOPIC, key_undefined=True, message=bytes(100))
    body = write_body(folder / "produce", request.SerializeToString())
    put_load(daemon.address, "Produce", body, LEVELS[0], 0.2)  # makes the topic

    def load(level: Level) -> Load:
        before = _end(daemon, _PRODUCE_TOPIC)
        measured = put_load(daemon.address, "Produce", body, level, scale.load_seconds)
        # h2load sees no gRPC status: what it counts as answered must be in the log.
        written = _end(daemon, _PRODUCE_TOPIC) - before
        if written < measured.done:
            raise RuntimeError(
                f"{measured.done} produces were answered, but only {written} messages are there"
            )
        return measured

    return _in_turns(scale, "sync produce", "Produce", body, nothing, load)


def _consume(scale: Scale, folder: Path, nothing: processes.Server, daemon: processes.Server) -> list[Figure]:
    request = pb.ConsNAckRq(topic=FILLED_TOPIC, group="bench", auto_ack=True)
    body = write_body(folder / "consume", request.SerializeToString())

    def load(level: Level) -> Load:
        _rewind(daemon)
        measured = put_load(daemon.address, "ConsumeNAck", body, level, scale.load_seconds)
        _await_commit(daemon, measured.done)
        return measured

    return _in_turns(scale, "consume + auto ack", "ConsumeNAck", body, nothing, load)


def _in_turns(
    scale: Scale, name: str, method: str, body: Path, nothing: processes.Server, load: Callable[[Level], Load]
) -> list[Figure]:
    figures = []
    for level in LEVELS:
        reference, measured = [], []
        for _ in range(scale.rounds):
            reference.append(put_load(nothing.address, method, body, level, scale.load_seconds))
            measured.append(load(level))
        figures += _figures(name, level, reference, measured)
    return figures


def _figures(name: str, level: Level, reference: list[Load], measured: list[Load]) -> list[Figure]:
    ratio = statistics.median(b.per_second / a.per_second for a, b in zip(reference, measured, strict=True))
    figure = Figure(
        name=f"{name}, {level.in_flight} in flight",
        value=statistics.median(one.per_second for one in measured),
        unit="/s",
        reference=statistics.median(one.per_second for one in reference),
        ratio=ratio,
        target=f"ratio >= {_RATIO_WANTED}" if level.in_flight > 1 else "",
        met=ratio >= _RATIO_WANTED if level.in_flight > 1 else None,
    )
    if level.in_flight > 1:
        return [figure]
    mean = statistics.median(one.mean_ms for one in measured)
    latency = Figure(
        name=f"{name}, mean at 1 in flight",
        value=mean,
        unit="ms",
        reference=statistics.median(one.mean_ms for one in reference),
        target=f"<= {_MEAN_MS_WANTED} ms",
        met=mean <= _MEAN_MS_WANTED,
    )
    return [figure, latency]


def _offsets(daemon: processes.Server, topic: str) -> list[pb.PartitionOffset]:
    with grpc.insecure_channel(daemon.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = pb.GetOffsetsRq(topic=topic, group="bench")
        return list(KafkaPixyStub(channel).GetOffsets(request, timeout=_CALL_SECONDS_MAX).offsets)


def _end(daemon: processes.Server, topic: str) -> int:
    return sum(entry.end for entry in _offsets(daemon, topic))


def _rewind(daemon: processes.Server) -> None:
    with grpc.insecure_channel(daemon.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        entries = [
            pb.PartitionOffset(partition=e.partition, offset=-2) for e in _offsets(daemon, FILLED_TOPIC)
        ]
        request = pb.SetOffsetsRq(topic=FILLED_TOPIC, group="bench", offsets=entries)
        KafkaPixyStub(channel).SetOffsets(request, timeout=_CALL_SECONDS_MAX)


def _await_commit(daemon: processes.Server, consumed: int) -> None:
    """h2load sees no gRPC status: what it counts as answered must be committed soon, and there must be more to consume."""
    until = time.monotonic() + _CALL_SECONDS_MAX
    while True:
        entries = _offsets(daemon, FILLED_TOPIC)
        if sum(entry.offset for entry in entries) >= consumed:
            break
        if time.monotonic() > until:
            raise RuntimeError(
                f"{consumed} polls were answered, but not so many messages are acked: {entries}"
            )
    if not any(entry.lag for entry in entries):
        raise RuntimeError("the topic ran dry: fill in more")


# --- without the network --------------------------------------------------------------------------------------------


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
    command = [sys.executable, "-m", "bench.local", *arguments]
    command = command if core is None else processes.pinned(core, command)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


# --- the process ----------------------------------------------------------------------------------------------------


def ready(scale: Scale) -> list[Figure]:
    """From the start of the process to the line that says it serves, on an empty directory."""
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
    """Memory and processor time of a daemon with 100 partitions and nothing to do."""
    config = {"proxies": {"default": {"default_partitions": 100}}}
    with (
        tempfile.TemporaryDirectory(prefix="pixy-bench-") as name,
        processes.daemon(Path(name), config) as daemon,
    ):
        with grpc.insecure_channel(daemon.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            request = pb.ProdRq(topic="t", key_undefined=True, message=bytes(100))
            for _ in range(300):
                KafkaPixyStub(channel).Produce(request, timeout=_CALL_SECONDS_MAX)
        time.sleep(
            scale.idle_seconds
        )  # what was written is synced behind everybody's back; that is not idle yet
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
    """How memory grows with what is stored."""
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


MEASURES: dict[str, Callable[[Scale], list[Figure]]] = {
    "grpc": grpc_door,
    "no-network": no_network,
    "ready": ready,
    "idle": idle,
    "growth": growth,
}
