"""`python -m bench.copies`: a node of three that was away copies what it lacks, in one run with the
raw speed of the machine's disk and loopback.

The disk's is that of a new file of the size of the copy, in writes of 1 MiB with a sync at the end:
one before the copy and one after it, beside the data of the nodes. All of these files stay until
the end, for a write to memory that another file has given back is several times as fast as one to
new memory, on a virtual machine.

--only NAME     one of the names below; repeatable
--mib N         MiB to copy in `large` (default 1024) and, a quarter of it, in `small`
--partitions N  partitions in `many` (default 1000)

    large      batches of 64 KiB; memory of the source and of the destination meanwhile
    small      batches of ten records of 100 bytes
    many       partitions of one record
    producers  a lone producer's p99 beside such a copy, and without one, in turns
    unpaced    the same beside a copy that takes no notice of clients
    cut        bytes that are sent again when the destination, or the source, is killed at 90 %

All three nodes and the load share the cores of this machine. The time begins when the node says
that it lacks records.
"""

import argparse
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from bench.copies.unpaced import UNPACED
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
_LARGE_WANTED, _SMALL_WANTED, _MANY_WANTED_S = 0.4, 40e6, 30.0
_P99_WANTED, _UNPACED_P99_WANTED, _AGAIN_WANTED_PERCENT = 1.5, 3.0, 5
_MEMORY_WANTED = 64 << 20
_LOOK_S = 0.1
_PACE_S = 0.005
_PACED_TURN_S, _UNPACED_TURN_S, _IDLE_TURN_S, _SETTLE_S = 1.2, 0.3, 0.6, 0.2
"""Seconds of a producer beside a copy, without one, and between them. A node that is stopped for
two seconds is silent.
"""
_CUT_AT, _CUT_LOOK_S = 0.9, 0.02
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
    """A producer beside a copy that keeps to its pace."""
    return [_producer(options, "a copy at its pace", ("-m", "pixy"), _P99_WANTED, _PACED_TURN_S)]


def unpaced(options: argparse.Namespace) -> list[Figure]:
    """A producer beside a copy as fast as it can be."""
    return [_producer(options, "an unpaced copy", UNPACED, _UNPACED_P99_WANTED, _UNPACED_TURN_S)]


def cut(options: argparse.Namespace) -> list[Figure]:
    """A copy whose destination, or source, is killed when nine tenths of it have come."""
    return [_cut(options.mib * _MIB, who) for who in ("destination", "source")]


def _cut(size: int, who: str) -> Figure:
    with _away(1) as (cluster, away):
        fill_topic(cluster, size, _LARGE_BYTES)
        source = cluster.leader(f"{_TOPIC}-0")
        senders = cluster.running
        before = sum(_copied_bytes(each, "sent") for each in senders)
        away.start_nowait()
        wait_for(lambda: _copied_bytes(away, "fetched") >= _CUT_AT * size, cluster, _CUT_LOOK_S)
        come = _copied_bytes(away, "fetched")
        killed = away if who == "destination" else source
        killed.kill()
        killed.start_nowait()
        wait_for(lambda: all(map(_is_in_sync, cluster.nodes)), cluster)
        if killed is source:
            again = _copied_bytes(away, "fetched") - size
        else:
            again = sum(_copied_bytes(each, "sent") for each in senders) - before - size
    return Figure(
        f"a copy sent again, its {who} killed at {100 * come / size:.0f} %",
        100 * again / size,
        "%",
        target=f"<= {_AGAIN_WANTED_PERCENT} %",
        met=come < size and again <= _AGAIN_WANTED_PERCENT / 100 * size,
    )


def _producer(
    options: argparse.Namespace, copy: str, program: Sequence[str], wanted: float, turn_s: float
) -> Figure:
    """A producer's p99 beside a copy and without it, in turns: its destination is stopped and
    continued.
    """
    calls: list[tuple[float, float]] = []
    ended = threading.Event()
    turns: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with _away(1, program) as (cluster, away):
        fill_topic(cluster, options.mib * _MIB, _LARGE_BYTES)
        source = cluster.leader(f"{_TOPIC}-0")
        thread = threading.Thread(target=_produce, args=(source, calls, ended))
        thread.start()
        try:
            away.start_nowait()
            wait_for(lambda: _BEGUN in away.log(), cluster, _CUT_LOOK_S)
            # The copy may end within a turn, which is not counted then.
            while (turn := _turn(turn_s)) and not _is_in_sync(source):
                turns[True].append(turn)
                away.pause()
                turns[False].append(_turn(_IDLE_TURN_S))
                away.resume()
        finally:
            ended.set()
            thread.join()
    beside, without = (
        [
            took
            for began, took in calls
            if any(first <= began and began + took <= last for first, last in turns[each])
        ]
        for each in (True, False)
    )
    ratio = _p99(beside) / _p99(without)
    return Figure(
        f"p99 of a producer beside {copy}",
        1e3 * _p99(beside),
        "ms",
        1e3 * _p99(without),
        ratio,
        f"ratio <= {wanted}",
        ratio <= wanted,
    )


def _turn(seconds: float) -> tuple[float, float]:
    """Begin and end of a time in which nothing changes; it begins a moment later."""
    time.sleep(_SETTLE_S)
    began = time.perf_counter()
    time.sleep(seconds)
    return began, time.perf_counter()


MEASURES = {
    "large": large,
    "small": small,
    "many": many,
    "producers": producers,
    "unpaced": unpaced,
    "cut": cut,
}


# --- parts ----------------------------------------------------------------------------------------


@contextmanager
def _away(partitions: int, program: Sequence[str] = ("-m", "pixy")) -> Iterator[tuple[Cluster, ClusterNode]]:
    """A cluster with an empty topic, and a node of it that was killed and leads nothing of it."""
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder:
        config = proxy_config(journal=_JOURNAL, limits={"max_partitions": 4 * partitions + 100})
        own = {number: {**config, "management_addr": f"{folder}/{number}.sock"} for number in (1, 2, 3)}
        with Cluster(Path(folder), own=own, program=program) as cluster:
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
    nodes = source, away
    away.start_nowait()
    wait_for(lambda: _BEGUN in away.log(), cluster, _CUT_LOOK_S)
    begun, first = time.monotonic(), [_rss(node) for node in nodes]
    most = first

    def has_all() -> bool:
        nonlocal most
        most = [max(was, _rss(node)) for was, node in zip(most, nodes, strict=True)]
        return _is_in_sync(source)

    wait_for(has_all, cluster)
    ended = time.monotonic()
    grown = [last - at_first for last, at_first in zip(most, first, strict=True)]
    return ended - begun, (grown[0], grown[1])


def wait_for(condition: Callable[[], bool], cluster: Cluster, look_s: float = _LOOK_S) -> None:
    """Wait until something is true, and fail with the logs if it does not become so."""
    until = time.monotonic() + _SECONDS_MAX
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"the copies do not end; logs:\n{cluster.logs()}")
        time.sleep(look_s)


def _copied_bytes(node: ClusterNode, way: str) -> int:
    """Bytes of copies that a node has "sent" or "fetched" since its start; 0 while it begins."""
    try:
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as answer:
            client.connect(node.config["management_addr"])
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            found = re.search(rb"^pixy_copies_%b_bytes_total{.*} (\S+)" % way.encode(), answer.read(), re.M)
    except (ConnectionError, FileNotFoundError):
        return 0
    return int(float(found[1])) if found else 0


def _is_in_sync(node: ClusterNode) -> bool:
    """True if the other replicas have all entries of what a node leads."""
    led = [group for group in node.status().groups if group.members]
    return not any(each.behind for group in led for each in group.members)


def _rss(node: ClusterNode) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def _produce(node: ClusterNode, calls: list[tuple[float, float]], ended: threading.Event) -> None:
    """Make lone calls of Produce, two hundred a second: begin and duration of each, in seconds."""
    request = pb.ProdRq(topic=_TOPIC, message=bytes(100), key_undefined=True)
    with grpc.insecure_channel(node.address) as channel:
        stub = KafkaPixyStub(channel)
        while not ended.is_set():
            began = time.perf_counter()
            stub.Produce(request, timeout=60)
            took = time.perf_counter() - began
            calls.append((began, took))
            time.sleep(max(0.0, _PACE_S - took))


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
