"""Cost of the gRPC server itself: no-op calls, TLS, deadlines, idle connections."""

import json
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.kit import processes
from bench.kit.figures import Figure
from bench.kit.load import LEVELS, Level, Load, put_load, write_body
from pixy.http2 import frames as f
from pixy.proto import kafkapixy_pb2 as pb

_WARM_UP_SECONDS = 0.3
_NOOP_RATIO_WANTED = 10
_NOOP_CPU_US_WANTED = 6
_NOOP_CPU_SHARE_WANTED = 6 / 90
"""The same as a share of grpc.aio's time, on the machine that the 6 us refer to."""
_TLS_WANTED = 0.6
_DEADLINES_WANTED = 0.75
_CONNECTIONS = 5000
_CONNECTION_KB_WANTED = 12
_PRODUCE = pb.ProdRq(topic="produced", key_undefined=True, message=bytes(100)).SerializeToString()


def noop_calls(rounds: int, seconds: float) -> list[Figure]:
    """Unary no-op calls, beside grpc.aio, whose processor time per call calibrates the machine."""
    core, figures = processes.server_core(), []
    with (
        tempfile.TemporaryDirectory(prefix="pixy-bench-") as name,
        processes.noop(core) as aio,
        processes.noop_core(core) as own,
    ):
        body = write_body(Path(name) / "produce", _PRODUCE)
        for level in LEVELS:
            pairs = [
                (_loaded(aio, body, level, seconds), _loaded(own, body, level, seconds))
                for _ in range(rounds)
            ]
            reference, measured = ([each for each, _ in side] for side in zip(*pairs, strict=True))
            cpu_us = [statistics.median(each for _, each in side) for side in zip(*pairs, strict=True)]
            figures += _noop_figures(level.in_flight, reference, measured, *cpu_us)
    return figures


def _loaded(server: processes.Server, body: Path, level: Level, seconds: float) -> tuple[Load, float]:
    """A load, and the server's processor time per call in microseconds."""
    before = server.cpu_seconds()
    load = put_load(server.address, "Produce", body, level, seconds)
    calls = load.per_second * (seconds + _WARM_UP_SECONDS)
    return load, 1e6 * (server.cpu_seconds() - before) / calls


def _noop_figures(
    in_flight: int, reference: list[Load], measured: list[Load], reference_us: float, cpu_us: float
) -> list[Figure]:
    ratio = statistics.median(b.per_second / a.per_second for a, b in zip(reference, measured, strict=True))
    wanted = in_flight > 1
    calls = Figure(
        name=f"no-op on pixy's core, {in_flight} in flight",
        value=statistics.median(one.per_second for one in measured),
        unit="/s",
        reference=statistics.median(one.per_second for one in reference),
        ratio=ratio,
        target=f"ratio >= {_NOOP_RATIO_WANTED}" if wanted else "",
        met=ratio >= _NOOP_RATIO_WANTED if wanted else None,
    )
    if not wanted:
        return [calls]
    share = cpu_us / reference_us
    cpu = Figure(
        name="  CPU per call",
        value=cpu_us,
        unit="us",
        reference=reference_us,
        ratio=share,
        target=f"<= {_NOOP_CPU_US_WANTED} us, or ratio <= {_NOOP_CPU_SHARE_WANTED:.3f}",
        met=cpu_us <= _NOOP_CPU_US_WANTED or share <= _NOOP_CPU_SHARE_WANTED,
    )
    return [calls, cpu]


def tls(rounds: int, seconds: float) -> list[Figure]:
    """The same over TLS, as a share of plaintext."""
    core, level = processes.server_core(), LEVELS[2]
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        body = write_body(folder / "produce", _PRODUCE)
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]
        names = ["-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*command, *names], check=True, capture_output=True)
        with processes.noop_core(core) as plain, processes.noop_core(core, certificate, key) as secure:
            pairs = [
                (
                    put_load(plain.address, "Produce", body, level, seconds).per_second,
                    put_load(secure.address, "Produce", body, level, seconds, secure=True).per_second,
                )
                for _ in range(rounds)
            ]
    share = statistics.median(b / a for a, b in pairs)
    value = statistics.median(b for _, b in pairs)
    target = f">= {_TLS_WANTED:.0%} of h2c"
    name = f"no-op over TLS, {level.in_flight} in flight: {share:.0%} of h2c"
    return [Figure(name, value, "/s", target=target, met=share >= _TLS_WANTED)]


def deadlines(rounds: int, seconds: float) -> list[Figure]:
    """Produce with header blocks as of grpc-go, with and without a new deadline in each call."""
    level = LEVELS[2]
    found = [_with_and_without_deadlines(level, seconds) for _ in range(rounds)]
    share = statistics.median(each["deadlines"] / each["plain"] for each in found)
    name = f"Produce with a new deadline in each call, {level.in_flight} in flight: {share:.0%} of without"
    value = statistics.median(each["deadlines"] for each in found)
    target = f">= {_DEADLINES_WANTED:.0%}"
    return [Figure(name, value, "/s", target=target, met=share >= _DEADLINES_WANTED)]


def _with_and_without_deadlines(level: Level, seconds: float) -> dict[str, float]:
    """Results of `bench.grpc.deadline_client` on a new daemon."""
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        body = write_body(folder / "produce", _PRODUCE)
        with processes.daemon(folder, core=processes.server_core()) as daemon:
            put_load(daemon.address, "Produce", body, LEVELS[0], 0.2)  # creates the topic
            arguments = [daemon.address, "Produce", str(body), str(level.connections), str(level.streams)]
            command = [sys.executable, "-m", "bench.grpc.deadline_client", *arguments, str(seconds)]
            pinned = processes.pinned(processes.load_core(), command)
            done = subprocess.run(pinned, check=True, stdout=subprocess.PIPE, text=True)
            found: dict[str, float] = json.loads(done.stdout)
            return found


def idle_connections() -> list[Figure]:
    """Memory of idle connections after the HTTP/2 handshake."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    greeting = f.PREFACE + f.frame(f.FrameType.SETTINGS, 0, 0) + f.frame(f.FrameType.SETTINGS, f.ACK, 0)
    with processes.noop_core() as server, ExitStack() as stack:
        host, port = server.address.rsplit(":", 1)
        before = server.rss_bytes()
        for _ in range(_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(greeting)
        # All SETTINGS are answered once the last connection's are.
        connection.settimeout(30)
        while not connection.recv(65_536).endswith(f.frame(f.FrameType.SETTINGS, f.ACK, 0)):
            time.sleep(0)
        kilobytes = (server.rss_bytes() - before) / _CONNECTIONS / 1024
    target = f"<= {_CONNECTION_KB_WANTED} KB"
    met = kilobytes <= _CONNECTION_KB_WANTED
    return [Figure(f"one of {_CONNECTIONS} idle connections", kilobytes, "KB", target=target, met=met)]
