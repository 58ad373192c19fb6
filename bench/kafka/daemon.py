"""Produce and ConsumeNAck through a daemon in front of a real Kafka; broker, daemon and load share
the same cores.

Calls that h2load counts as answered are verified: produced messages must be in the log, consumed
ones must be committed by the group.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from bench.kit import processes
from bench.kit.figures import Figure
from bench.kit.load import LEVELS, Level, Load, put_load, write_body
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.integration.kafka_tools import run_tool

_CALL_SECONDS_MAX = 30.0
_PRODUCED, _FILLED = "produced", "filled"
_PRODUCE_WANTED = {128: 25_000, 512: 40_000}
_CONSUME_WANTED = {128: 40_000}
_MEAN_MS_WANTED = 1.2


class _Bench:
    """A daemon under measurement.

    Args:
        address: address of its gRPC server.
        seconds: duration of one round.
        rounds: number of rounds; medians are reported.
        fill: appends messages to the topic that is consumed.
    """

    def __init__(
        self, folder: Path, daemon: processes.Server, seconds: float, rounds: int, fill: Callable[[], object]
    ) -> None:
        self._folder = folder
        self._daemon = daemon
        self._seconds = seconds
        self._rounds = rounds
        self._groups = 0
        self._fill = fill

    def produce(self, level: Level) -> list[Figure]:
        request = pb.ProdRq(topic=_PRODUCED, key_undefined=True, message=bytes(100))
        body = write_body(self._folder / "produce", request.SerializeToString())
        loads, cpu = [], []
        for _ in range(self._rounds):
            before, used = self._end(_PRODUCED), self._daemon.cpu_seconds()
            loads.append(put_load(self._daemon.address, "Produce", body, level, self._seconds))
            written = self._end(_PRODUCED) - before
            if written < loads[-1].done:
                raise RuntimeError(
                    f"{loads[-1].done} produces were answered, but only {written} messages are there"
                )
            cpu.append((self._daemon.cpu_seconds() - used) / written * 1e6)
        return _figures("produce", level, loads, cpu, _PRODUCE_WANTED)

    def consume(self, level: Level) -> list[Figure]:
        loads: list[Load] = []
        cpu: list[float] = []
        while len(loads) < self._rounds:
            self._groups += 1
            group = f"bench-{self._groups}"
            request = pb.ConsNAckRq(topic=_FILLED, group=group, auto_ack=True)
            body = write_body(self._folder / "consume", request.SerializeToString())
            with grpc.insecure_channel(self._daemon.address) as channel:
                KafkaPixyStub(channel).ConsumeNAck(request, timeout=_CALL_SECONDS_MAX)  # joins the group
            used = self._daemon.cpu_seconds()
            load = put_load(self._daemon.address, "ConsumeNAck", body, level, self._seconds)
            used = self._daemon.cpu_seconds() - used
            committed = self._committed(group, load.done)
            if committed is None:
                self._fill()
                continue
            loads.append(load)
            cpu.append(used / committed * 1e6)
        return _figures("consume + auto ack", level, loads, cpu, _CONSUME_WANTED)

    def _committed(self, group: str, consumed: int) -> int | None:
        """Number of messages that a load has taken, None if none is left in a partition."""
        until = time.monotonic() + _CALL_SECONDS_MAX
        while True:
            offsets = self._offsets(_FILLED, group)
            if any(each.offset == each.end for each in offsets):
                return None
            committed = sum(max(0, each.offset) for each in offsets)
            if committed >= consumed:
                return committed
            if time.monotonic() > until:
                raise RuntimeError(f"{consumed} messages were consumed, but only {committed} are committed")
            time.sleep(0.1)

    def _end(self, topic: str) -> int:
        return sum(each.end for each in self._offsets(topic, "unused"))

    def _offsets(self, topic: str, group: str) -> list[pb.PartitionOffset]:
        with grpc.insecure_channel(self._daemon.address) as channel:
            request = pb.GetOffsetsRq(topic=topic, group=group)
            return list(KafkaPixyStub(channel).GetOffsets(request, timeout=_CALL_SECONDS_MAX).offsets)


def measure_daemon(addresses: list[str], seconds: float, rounds: int, filled: int = 600_000) -> list[Figure]:
    """Fill a topic with Kafka's own tool, and load a daemon.

    Args:
        addresses: addresses of the brokers.
        filled: messages to consume at first, and added whenever a load takes all of a partition.
    """
    server = ["--bootstrap-server", addresses[0]]
    for topic in (_PRODUCED, _FILLED):
        run_tool(
            "org.apache.kafka.tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "4"
        )
    sizes = ["--num-records", str(filled), "--record-size", "100", "--throughput", "-1"]
    bootstrap = f"bootstrap.servers={addresses[0]}"
    tool = "org.apache.kafka.tools.ProducerPerformance"
    fill = partial(run_tool, tool, "--topic", _FILLED, *sizes, "--producer-props", bootstrap)
    fill()
    config = {"proxies": {"default": {"kind": "kafka", "kafka": {"seed_peers": addresses}}}}
    with tempfile.TemporaryDirectory(prefix="pixy-bench-") as name:
        folder = Path(name)
        with processes.daemon(folder, config) as daemon:
            bench = _Bench(folder, daemon, seconds, rounds, fill)
            figures = [figure for level in LEVELS for figure in bench.produce(level)]
            return figures + [figure for level in LEVELS for figure in bench.consume(level)]


def _figures(
    name: str, level: Level, loads: list[Load], cpu: list[float], wanted: dict[int, int]
) -> list[Figure]:
    rate = statistics.median(each.per_second for each in loads)
    target = wanted.get(level.in_flight)
    name = f"gRPC {name}, {level.in_flight} in flight"
    figures = [
        Figure(
            name,
            rate,
            "msg/s",
            target="" if target is None else f">= {target:,}/s",
            met=None if target is None else rate >= target,
        ),
        Figure(f"{name}, CPU", statistics.median(cpu), "us/msg"),
    ]
    if level.in_flight == 1:
        mean = statistics.median(each.mean_ms for each in loads)
        met, target_ms = (
            (mean <= _MEAN_MS_WANTED, f"<= {_MEAN_MS_WANTED} ms") if "produce" in name else (None, "")
        )
        figures.append(Figure(f"{name}, mean", mean, "ms", target=target_ms, met=met))
    return figures
