"""Producers at several nodes of a cluster, and a check of what the nodes have then.

Every value is sent once, so a value that is there twice was doubled by the cluster. A call that
failed may be written or not; `Ledger` has the rest of the rules.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.records import OffsetRange, TopicPartition
from tests.fakes.batches import offsets_in, values_in
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import ClusterNode
from tests.integration.daemon import CHANNEL_OPTIONS
from tests.integration.ledger import Ledger, Position

SECONDS_MAX = 60.0
_KEY_BYTES_MAX = 64
_DEADLINE_S = 5.0
_PACE_S = 0.01
_RECONNECT_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_CHANNEL_OPTIONS = (*CHANNEL_OPTIONS, *_RECONNECT_OPTIONS)
_RETRIES = {
    "maxAttempts": 5,
    "initialBackoff": "0.05s",
    "maxBackoff": "0.5s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{"name": [{}], "retryPolicy": _RETRIES}],
}
_RETRYING = (
    *((name, value) for name, value in CHANNEL_OPTIONS if name != "grpc.enable_retries"),
    *_RECONNECT_OPTIONS,
)
_ANYWHERE_OPTIONS = (*_RETRYING, ("grpc.service_config", json.dumps(_SERVICE_CONFIG)))
"""Options of a client that has the addresses of all nodes."""
_HEALTHY_CONFIG = {**_SERVICE_CONFIG, "healthCheckConfig": {"serviceName": ""}}
_HEALTHY_OPTIONS = (*_RETRYING, ("grpc.service_config", json.dumps(_HEALTHY_CONFIG)))
"""The same of one that watches their health: it asks no node that has not started yet."""
ANYWHERE = 0
"""Stands for the node of such a client."""
_AT_EACH_NODE = 2


class Failed(NamedTuple):
    """A failed call."""

    node: int
    code: grpc.StatusCode
    details: str
    seconds: float
    at: str
    """Time of its end, as in logs."""


class Producers:
    """Producers that run during the `with` block, two for each node: each has one call at a time, a
    deadline of 5 s, and pauses for 10 ms after each answer.

    Args:
        nodes: nodes that get the calls.
        ledger: gets sent and answered values.
        topic: the topic; half of the messages have keys.
        pad_bytes: size that is added to each value.
        anywhere: each producer has the addresses of all these nodes, and tries again what is
            answered UNAVAILABLE; the node of its answers is `ANYWHERE`.
        knows: nodes whose addresses it has then, if they are not these; some may not have started,
            so it watches their health.
    """

    def __init__(
        self,
        nodes: Sequence[ClusterNode],
        ledger: Ledger,
        topic: str,
        *,
        pad_bytes: int = 0,
        anywhere: bool = False,
        knows: Sequence[ClusterNode] = (),
    ) -> None:
        self._ledger = ledger
        self._topic = topic
        self._padding = bytes(pad_bytes)
        self._options = _CHANNEL_OPTIONS if not anywhere else _HEALTHY_OPTIONS if knows else _ANYWHERE_OPTIONS
        self._lock = threading.Lock()
        self._stop = threading.Event()
        targets = [(node.number, node.address) for node in nodes] * _AT_EACH_NODE
        if anywhere:
            targets = [(ANYWHERE, "ipv4:" + ",".join(node.address for node in knows or nodes))] * len(targets)
        self._threads = [
            threading.Thread(target=self._produce, args=(node, target, worker))
            for worker, (node, target) in enumerate(targets)
        ]
        self.failed: list[Failed] = []
        # Number of answers by node.
        self.answered: Counter[int] = Counter()
        # Time of the last answer and longest time without one, by node.
        self._last: dict[int, float] = {}
        self.longest_gap_s: dict[int, float] = {}

    def __enter__(self) -> "Producers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_answers(self, nodes: Sequence[ClusterNode], count: int = 20) -> None:
        """Wait for so many further answers of each of these nodes."""
        before = dict(self.answered)

        def are_there() -> bool:
            return all(self.answered[node.number] >= before.get(node.number, 0) + count for node in nodes)

        until_blocking(are_there, lambda: f"answers {self.answered}, failures {self.failed[-5:]}")

    def wait_failures(self, node: ClusterNode, count: int = 4) -> None:
        """Wait for so many further failed calls at a node."""
        before = len(self._failed_at(node))
        until_blocking(lambda: len(self._failed_at(node)) >= before + count)

    def _failed_at(self, node: ClusterNode) -> list[Failed]:
        return [failed for failed in self.failed if failed.node == node.number]

    def _produce(self, node: int, address: str, worker: int) -> None:
        with grpc.insecure_channel(address, options=self._options) as channel:
            stub = KafkaPixyStub(channel)
            number = 0
            while not self._stop.wait(_PACE_S):
                number += 1
                self._send(
                    stub, node, f"{id(self)}-{node}-{worker}-{number}".encode(), keyed=bool(number % 2)
                )

    def _send(self, stub: KafkaPixyStub, node: int, value: bytes, *, keyed: bool) -> None:
        with self._lock:
            self._ledger.sent[value] += 1
        began = time.monotonic()
        request = pb.ProdRq(topic=self._topic, message=value, key_undefined=not keyed)
        if keyed:
            request.key_value = value[:_KEY_BYTES_MAX]
        call = stub.Produce.future(request, timeout=_DEADLINE_S)
        code = call.code()
        ended = time.monotonic()
        with self._lock:
            if code is not grpc.StatusCode.OK:
                self.failed.append(
                    Failed(node, code, call.details(), round(ended - began, 3), time.strftime("%X"))
                )
                return
            answer = call.result()
            self._ledger.acknowledge(Position(self._topic, answer.partition, answer.offset), value)
            gap = ended - self._last.get(node, ended)
            self._last[node] = ended
            self.longest_gap_s[node] = max(self.longest_gap_s.get(node, 0.0), gap)
            self.answered[node] += 1


def audit(nodes: Iterable[ClusterNode], ledger: Ledger, topic: str, partitions: int) -> None:
    """Read everything at each of these nodes: nothing is lost, nothing is there twice, and all
    nodes have the same.
    """
    for node in nodes:
        for partition in range(partitions):
            records, end = read_log(node.address, topic, partition)
            ledger.check_log(TopicPartition(topic, partition), OffsetRange(0, end), records)
    ledger.check_copies()


def read_log(address: str, topic: str, partition: int) -> tuple[list[tuple[int, bytes]], int]:
    """All records of a partition as a node serves it, and its end offset."""
    records: list[tuple[int, bytes]] = []
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = LogStub(channel)
        query = log_pb.OffsetQuery(topic=topic, partition=partition, latest=True)
        latest = stub.ListOffsets(log_pb.ListOffsetsRequest(queries=[query]), timeout=SECONDS_MAX)
        end = latest.answers[0].offset
        wanted = log_pb.FetchRange(topic=topic, partition=partition, to_offset=end)
        # The replica of this node may be a little behind the leader.
        request = log_pb.FetchRequest(ranges=[wanted], max_wait_ms=int(1000 * SECONDS_MAX))
        state = log_pb.MORE
        for answer in stub.Fetch(request, timeout=SECONDS_MAX):
            values = values_in(answer.batches)
            assert None not in values
            records += zip(offsets_in(answer.batches), (value or b"" for value in values), strict=True)
            state = answer.state
        assert state == log_pb.END_OF_RANGE, f"{address}: {topic}-{partition} ends with state {state}"
    return [record for record in records if record[0] < end], end
