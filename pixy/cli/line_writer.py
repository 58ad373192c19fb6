"""Appends the messages of an input in order.

One append is in flight at a time, which keeps the order: of two, the second could succeed although
the first failed. Messages that arrive meanwhile are batched in the next append, which is encoded
while the current one is in flight, so throughput does not need a second one.

Messages without a key go to one partition, chosen at random per run, so that consumers receive them
in the order of the input. With `spread` each append goes to the next partition, and the order holds
within each partition. A key selects the partition as `Produce` does. The choice depends on the
topic's version and is made again when the topic has changed.

A reader thread splits the input into messages as it arrives. It reads the file descriptor, because
a thread blocked in a buffered reader keeps the process from exiting.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from pixy.cli.connection import CallFailed, status_name

if TYPE_CHECKING:
    import grpc

    from pixy.proto.pixy_log_pb2 import AppendRequest, AppendResponse, Topic
    from pixy.proto.pixy_log_pb2_grpc import LogStub

__all__ = ["LineWriter", "Messages", "Written", "split_messages"]

_BATCH_BYTES = 256 << 10
_RECORD_BYTES = 32
"""Upper bound of a record's overhead beside its message."""
_CHUNK_BYTES = 64 << 10
_CHUNKS_WAITING = 64
_DESCRIPTIONS_MAX = 10
"""Attempts of one append with new versions of its topic."""
_PERHAPS_WRITTEN = frozenset(
    {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Statuses of appends whose messages may be in the log; others say that none is."""
_PERHAPS_SMALLER = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
"""Statuses of appends that can succeed without one of their messages."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Properties shared by all messages of a run. `spread`: they go to all partitions in turn."""

    topic: str
    cluster: str
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    spread: bool


@dataclass(frozen=True, slots=True)
class Written:
    """Consecutive messages of the input that were written: `count` of them, from `offset` on."""

    partition: int
    offset: int
    count: int


class _AppendCall(NamedTuple):
    """One append in flight."""

    values: Sequence[bytes]
    partition: int
    answer: "grpc.Future[AppendResponse]"
    descriptions: int


def split_messages(read: Callable[[int], bytes], separator: bytes) -> Iterator[list[bytes]]:
    """Messages of an input, as many at a time as have arrived. The separator ends a message; the
    end of the input ends the last one.
    """
    rest: list[bytes] = []
    while chunk := read(_CHUNK_BYTES):
        first, *others = chunk.split(separator)
        rest.append(first)
        if others:
            yield [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
    if last := b"".join(rest):
        yield [last]


class LineWriter:
    """Appends messages until the first failure.

    Args:
        stub: stub of the daemon.
        messages: properties shared by all messages.
        timeout: timeout of a call, in seconds.
        report: called with the messages written, in order.
        rng: selects the partition.
        wall_ms: timestamp of the messages, in milliseconds.
    """

    def __init__(
        self,
        stub: "LogStub",
        messages: Messages,
        timeout: float,
        report: Callable[[Written], None],
        *,
        rng: Random | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.written = 0
        """Number of messages written, all before the first failure."""
        self.in_doubt = 0
        """Messages of the append that failed, if they may be in the log nevertheless."""
        self.failure: grpc.RpcError | CallFailed | None = None
        self._stub = stub
        self._messages = messages
        self._timeout = timeout
        self._report = report
        self._rng = rng or Random()
        self._wall_ms = wall_ms
        self._topic: Topic | None = None
        self._partition = 0
        self._in_flight: _AppendCall | None = None

    def run(self, chunks: Iterator[list[bytes]]) -> None:
        """Append all messages; returns when the last append is answered.

        Raises:
            any exception of reading the input or of `report`.
        """
        import grpc

        gathered: queue.Queue[list[bytes] | Exception | None] = queue.Queue(_CHUNKS_WAITING)
        threading.Thread(
            target=_gather, args=(chunks, gathered), name="pixy-produce-read", daemon=True
        ).start()
        try:
            self._describe()
            for batch in self._batches(gathered):
                self._send(batch)
            self._settle()
        except (grpc.RpcError, CallFailed) as error:
            self.failure = error

    def _batches(self, gathered: "queue.Queue[list[bytes] | Exception | None]") -> Iterator[list[bytes]]:
        """Messages that have arrived, in batches of about `_BATCH_BYTES`."""
        batch: list[bytes] = []
        size = 0
        while True:
            if batch and gathered.empty():
                yield batch
                batch, size = [], 0
                continue  # More may have arrived while that batch waited for the one before.
            if gathered.empty():
                self._settle()
            chunk = gathered.get()
            if isinstance(chunk, Exception):
                raise chunk
            if chunk is None:
                break
            for value in chunk:
                if batch and size + len(value) + _RECORD_BYTES > _BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
                batch.append(value)
                size += len(value) + _RECORD_BYTES
        if batch:
            yield batch

    def _send(self, values: Sequence[bytes]) -> None:
        """Append, after the append in flight."""
        request = self._request(values)
        self._settle()
        self._start(values, request)

    def _start(self, values: Sequence[bytes], request: "AppendRequest", descriptions: int = 0) -> None:
        answer = self._stub.Append.future(request, timeout=self._timeout)
        self._in_flight = _AppendCall(values, request.partitions[0].partition, answer, descriptions)

    def _settle(self) -> None:
        """Wait for the append in flight; one rejected as a whole is retried if that can help."""
        import grpc

        while (sent := self._in_flight) is not None:
            self._in_flight = None
            try:
                (result,) = sent.answer.result().results
            except grpc.RpcError as error:
                self._try_again(sent, error)
                continue
            if result.code:
                status = _status(result.code)
                self.in_doubt = _in_doubt(sent, status)
                raise CallFailed(f"{status}: {result.message}")
            self.written += len(sent.values)
            self._report(Written(sent.partition, result.base_offset, len(sent.values)))

    def _try_again(self, sent: _AppendCall, error: "grpc.RpcError") -> None:
        """Resend an append rejected for the topic's version, or, in halves, for one of its
        messages.

        Raises:
            grpc.RpcError: `error`, if it has another cause.
        """
        status = status_name(error)
        if status == "FAILED_PRECONDITION" and sent.descriptions < _DESCRIPTIONS_MAX:
            self._describe()
            self._start(sent.values, self._request(sent.values), sent.descriptions + 1)
        elif status in _PERHAPS_SMALLER and len(sent.values) > 1:
            half = len(sent.values) // 2
            for values in (sent.values[:half], sent.values[half:]):
                self._send(values)
        else:
            self.in_doubt = _in_doubt(sent, status)
            raise error

    def _describe(self) -> None:
        """Look up the topic, created if missing as by Produce, and select the partition."""
        from pixy.proto import pixy_log_pb2
        from pixy.records import make_partitioner

        messages = self._messages
        request = pixy_log_pb2.DescribeTopicsRequest(
            cluster=messages.cluster, topics=[messages.topic], create_missing=True
        )
        answer = self._stub.DescribeTopics(request, timeout=self._timeout)
        if not answer.topics:
            raise CallFailed(f"topic {messages.topic} does not exist")
        known, self._topic = self._topic, answer.topics[0]
        partitions = self._topic.partitions
        if messages.key is not None:
            self._partition = make_partitioner(answer.partitioner, self._rng)(messages.key, partitions)
        elif known is None or self._partition >= partitions:
            self._partition = self._rng.randrange(partitions)

    def _request(self, values: Sequence[bytes]) -> "AppendRequest":
        from pixy.proto import pixy_log_pb2
        from pixy.records import NewRecord, build_batch

        messages, topic, now = self._messages, self._topic, self._wall_ms()
        assert topic is not None
        key, headers = messages.key, messages.headers
        batch = build_batch([NewRecord(key, value, headers, now) for value in values])
        if messages.spread:
            self._partition = (self._partition + 1) % topic.partitions
        return pixy_log_pb2.AppendRequest(
            cluster=messages.cluster,
            partitions=[
                pixy_log_pb2.PartitionBatches(
                    topic=messages.topic, partition=self._partition, batches=bytes(batch)
                )
            ],
            versions=[
                pixy_log_pb2.TopicVersion(
                    topic=messages.topic, version=topic.version, topic_id=topic.topic_id
                )
            ],
        )


def _gather(chunks: Iterator[list[bytes]], gathered: "queue.Queue[list[bytes] | Exception | None]") -> None:
    """Body of the reader thread."""
    try:
        for chunk in chunks:
            gathered.put(chunk)
    except Exception as error:
        gathered.put(error)
    else:
        gathered.put(None)


def _in_doubt(sent: _AppendCall, status: str) -> int:
    """Messages of a failed append that may be in the log."""
    return len(sent.values) if status in _PERHAPS_WRITTEN else 0


def _status(code: int) -> str:
    import grpc

    names = {status.value[0]: status.name for status in grpc.StatusCode}
    return names.get(code, str(code))
