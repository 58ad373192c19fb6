"""`python -m bench.copies`: a node of three that was away copies what it lacks, in one run with the
raw speed of the machine's disk and loopback.

The disk's is that of a new file of the size of the copy, in writes of 1 MiB with a sync at the end:
one before the copy and one after it, beside the data of the nodes. All of these files stay until
the end, for a write to memory that another file has given back is several times as fast as one to
new memory, on a virtual machine.

--only NAME     one of large, small, many, producers; repeatable
--mib N         MiB to copy in `large` (default 1024) and, a quarter of it, in `small`
--partitions N  partitions in `many` (default 1000)

    large      batches of 64 KiB; memory of the source and of the destination meanwhile
    small      batches of ten records of 100 bytes
    many       partitions of one record
    producers  a lone producer's p99 while `large` is copied, beside that without a copy

All three nodes and the load share the cores of this machine. The time begins when the node says
that it lacks records.
"""

import argparse
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from bench.kit.figures import Figure, as_table, machine
from bench.log.loads import fill
from bench.storage.raw import new_file_write
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config

_TOPIC = "bulk"
_BEGUN = "copies them from another one"
_JOURNAL: Mapping[str, Any] = {"file_bytes": "1MiB", "max_unapplied_bytes": "4MiB", "retain_bytes": 0}
"""So short that whoever was away for some megabytes copies."""
_LARGE_BYTES, _SMALL_BYTES = 64 << 10, 1200
_REQUEST_BYTES = 4 << 20
_RAW_BYTES = 512 << 20
_LARGE_WANTED, _SMALL_WANTED, _MANY_WANTED_S, _P99_WANTED = 0.4, 40e6, 30.0, 1.5
_MEMORY_WANTED = 64 << 20
_LOOK_S = 0.1
_CALLS_BEFORE = 500
_PACE_S = 0.01
_SECONDS_MAX = 600.0
_MIB = 1 << 20


def large(options: argparse.Namespace) -> list[Figure]:
    """Large batches."""
    size = options.mib * _MIB
    with _away(1) as (cluster, away), tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder:
        fill_topic(cluster, size, _LARGE_BYTES)
        source = cluster.leader(f"{_TOPIC}-0")
        written = [new_file_write(Path(folder, "before"), size, _MIB)]
        loopback = [_loopback()]
        seconds, memory = _copy(cluster, away, source)
        loopback.append(_loopback())
        written.append(new_file_write(Path(folder, "after"), size, _MIB))
    rate = size / seconds
    reference = min(statistics.harmonic_mean(written), statistics.harmonic_mean(loopback))
    figures = [
        Figure(
            "copy of batches of 64 KiB",
            rate / 1e6,
            "MB/s",
            reference / 1e6,
            rate / reference,
            f"ratio >= {_LARGE_WANTED}",
            rate >= _LARGE_WANTED * reference,
        )
    ]
    for name, rates in (("new files", written), ("loopback", loopback)):
        figures.append(Figure(f"{name} before, after", rates[0] / 1e6, "MB/s", rates[1] / 1e6))
    for name, grown in zip(("source", "destination"), memory, strict=True):
        figures.append(
            Figure(
                f"memory of the {name} meanwhile",
                grown / _MIB,
                "MiB",
                target=f"<= {_MEMORY_WANTED // _MIB} MiB",
                met=grown <= _MEMORY_WANTED,
            )
        )
    return figures


def small(options: argparse.Namespace) -> list[Figure]:
    """Small batches."""
    size = options.mib * _MIB // 4
    with _away(1) as (cluster, away):
        fill_topic(cluster, size, _SMALL_BYTES)
        seconds, _ = _copy(cluster, away, cluster.leader(f"{_TOPIC}-0"))
    rate = size / seconds
    return [
        Figure(
            "copy of batches of ten records of 100 bytes",
            rate / 1e6,
            "MB/s",
            target=f">= {_SMALL_WANTED / 1e6:.0f} MB/s",
            met=rate >= _SMALL_WANTED,
        )
    ]


def many(options: argparse.Namespace) -> list[Figure]:
    """Many partitions."""
    count = options.partitions
    with _away(count) as (cluster, away):
        fill_topic(cluster, count * 300, 120, partitions=count)
        # Entries of other partitions push those of the first ones out of the journals.
        cluster.create_topic("busy", 1)
        fill_topic(cluster, 64 * _MIB, _LARGE_BYTES, topic="busy")
        seconds, _ = _copy(cluster, away, cluster.running[0])
    return [
        Figure(
            f"copies of {count} small partitions",
            seconds,
            "s",
            target=f"<= {_MANY_WANTED_S:g} s",
            met=seconds <= _MANY_WANTED_S,
        )
    ]


def producers(options: argparse.Namespace) -> list[Figure]:
    """A producer beside a copy."""
    with _away(1) as (cluster, away):
        fill_topic(cluster, options.mib * _MIB, _LARGE_BYTES)
        source = cluster.leader(f"{_TOPIC}-0")
        before = _latencies(source, lambda made: made >= _CALLS_BEFORE)
        found: list[float] = []
        ended = threading.Event()
        thread = threading.Thread(target=lambda: found.extend(_latencies(source, lambda _: ended.is_set())))
        thread.start()
        _copy(cluster, away, source)
        ended.set()
        thread.join()
    ratio = _p99(found) / _p99(before)
    return [
        Figure(
            "p99 of a producer while a copy runs",
            1e3 * _p99(found),
            "ms",
            1e3 * _p99(before),
            ratio,
            f"ratio <= {_P99_WANTED}",
            ratio <= _P99_WANTED,
        )
    ]


MEASURES = {"large": large, "small": small, "many": many, "producers": producers}


# --- parts ----------------------------------------------------------------------------------------


@contextmanager
def _away(partitions: int) -> Iterator[tuple[Cluster, ClusterNode]]:
    """A cluster with an empty topic, and a node of it that was killed and leads nothing of it."""
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder:
        config = proxy_config(journal=_JOURNAL, limits={"max_partitions": 4 * partitions + 100})
        with Cluster(Path(folder), config=config) as cluster:
            cluster.start()
            cluster.create_topic(_TOPIC, partitions)
            cluster.wait_in_sync()
            away = cluster.others(cluster.leader(f"{_TOPIC}-0"))[0]
            away.kill()
            yield cluster, away


def fill_topic(
    cluster: Cluster, total_bytes: int, batch_bytes: int, *, partitions: int = 1, topic: str = _TOPIC
) -> None:
    """Write batches to the partitions in turn."""
    with grpc.insecure_channel(cluster.running[0].address) as channel:
        fill(
            channel,
            topic=topic,
            partitions=partitions,
            batch_bytes=batch_bytes,
            # A request may have a thousand batches.
            request_bytes=min(_REQUEST_BYTES, 900 * batch_bytes) if partitions == 1 else batch_bytes,
            total_bytes=total_bytes,
            in_flight=4,
        )


def _copy(cluster: Cluster, away: ClusterNode, source: ClusterNode) -> tuple[float, tuple[int, int]]:
    """Start the node that was away; seconds until it has everything, and by how many bytes the
    memory of the source and its own has grown meanwhile.
    """
    away.start_nowait()
    until = time.monotonic() + _SECONDS_MAX
    begun = 0.0
    nodes = source, away
    first: list[int] = []
    most = [0, 0]
    while True:
        if not begun and _BEGUN in away.log():
            begun = time.monotonic()
            first = [_rss(node) for node in nodes]
        if begun:
            most = [max(was, _rss(node)) for was, node in zip(most, nodes, strict=True)]
        if begun and _is_in_sync(source):
            ended = time.monotonic()
            grown = [last - at_first for last, at_first in zip(most, first, strict=True)]
            return ended - begun, (grown[0], grown[1])
        if time.monotonic() > until:
            raise RuntimeError(f"the copies do not end; logs:\n{cluster.logs()}")
        time.sleep(_LOOK_S)


def _is_in_sync(node: ClusterNode) -> bool:
    """True if the other replicas have all entries of what a node leads."""
    led = [group for group in node.status().groups if group.members]
    return not any(each.behind for group in led for each in group.members)


def _rss(node: ClusterNode) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def _latencies(node: ClusterNode, is_enough: Callable[[int], bool]) -> list[float]:
    """Seconds of lone calls of Produce, a hundred a second."""
    found: list[float] = []
    request = pb.ProdRq(topic=_TOPIC, message=bytes(100), key_undefined=True)
    with grpc.insecure_channel(node.address) as channel:
        stub = KafkaPixyStub(channel)
        while not is_enough(len(found)):
            began = time.perf_counter()
            stub.Produce(request, timeout=60)
            found.append(time.perf_counter() - began)
            time.sleep(max(0.0, _PACE_S - found[-1]))
    return found


def _p99(found: list[float]) -> float:
    return statistics.quantiles(found, n=100)[98]


def _loopback() -> float:
    """Bytes per second of one connection of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        buffer = memoryview(bytearray(_MIB))

        def receive() -> None:
            left = _RAW_BYTES
            while left:
                left -= receiver.recv_into(buffer, min(left, _MIB))

        thread = threading.Thread(target=receive)
        piece = bytes(_MIB)
        began = time.perf_counter()
        thread.start()
        for _ in range(_RAW_BYTES // _MIB):
            sender.sendall(piece)
        thread.join()
        return _RAW_BYTES / (time.perf_counter() - began)


def main() -> int:
    """Run the selected measurements."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bench.copies", description="Copies of partitions on this machine."
    )
    parser.add_argument("--only", action="append", choices=MEASURES, help="measure only this; repeatable")
    parser.add_argument("--mib", type=int, default=1024, help="MiB to copy")
    parser.add_argument("--partitions", type=int, default=1000, help="small partitions")
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in options.only or MEASURES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        figures += MEASURES[name](options)
    here = machine()
    print(
        f"\n{here['cores']} cores, Python {here['python']}, kernel {here['kernel']}; column no-op: the machine\n"
    )
    print(as_table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
