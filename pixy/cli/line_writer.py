"""Appends the messages of an input in order.

One append is in flight at a time, which keeps the order: of two, the second could succeed although
the first failed. Messages that arrive meanwhile are batched in the next append, which is encoded
while the current one is in flight, so throughput does not need a second one.

Messages without a key go to one partition, chosen at random per run, so that consumers receive them
in the order of the input; with `spread` each goes to the next partition, and the order holds within
each partition. A key selects the partition as `Produce` does. The choice depends on the topic's
version and is made again when the topic has changed.

A reader thread splits the input into messages as it arrives. It reads the file descriptor, because
a thread blocked in a buffered reader keeps the process from exiting.

An append without an answer is sent again to a daemon that is back. Whether it was written before
nobody can tell, so its messages may then be there twice.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from pixy.cli.connection import CallFailed, status_name
from pixy.cli.message_input import InputForm, InputMessage, WrongInputError
from pixy.cli.reconnection import ReconnectingStub

if TYPE_CHECKING:
    import grpc

    from pixy.proto.pixy_log_pb2 import AppendRequest, AppendResponse, AppendResult, Topic
    from pixy.proto.pixy_log_pb2_grpc import LogStub
    from pixy.records import Partitioner

_BATCH_BYTES = 256 << 10
_BATCH_MESSAGES = 1000
"""Messages of an append to a topic with more partitions than an append may have."""
_RECORD_BYTES = 32
"""Upper bound of a record's overhead beside its message."""
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
class TargetTopic:
    """The topic of the messages. `spread`: those without a key go to its partitions in turn."""

    topic: str
    cluster: str
    spread: bool = False


class Written(NamedTuple):
    """Messages that were written, in the order of the input, with partition and offset of each."""

    messages: Sequence[InputMessage]
    positions: Sequence[tuple[int, int]]


class _AppendCall(NamedTuple):
    """One append in flight: its messages, and their places in it by partition."""

    messages: Sequence[InputMessage]
    places: Mapping[int, Sequence[int]]
    answer: "grpc.Future[AppendResponse]"
    descriptions: int


class LineWriter:
    """Appends messages until the first failure.

    Args:
        link: the daemon.
        destination: where the messages go.
        form: parses them.
        timeout: timeout of a call, in seconds.
        report: called with the messages written.
        rng: selects the partition.
        wall_ms: timestamp of the messages, in milliseconds.

    Attributes:
        written: messages known to be written.
        failure: why not all were written.
        failed: number of the first message that is not known to be written, if there is a failure.
        in_doubt: messages from that one on that may be in the log nevertheless.
        repeated: numbers of messages that were sent again, and may be there twice.
    """

    def __init__(
        self,
        link: "ReconnectingStub[LogStub]",
        destination: TargetTopic,
        form: InputForm,
        timeout: float,
        report: Callable[[Written], None],
        *,
        rng: Random | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.written = 0
        self.failure: grpc.RpcError | CallFailed | None = None
        self.failed = 0
        self.in_doubt = 0
        self.repeated: set[int] = set()
        self._link = link
        self._destination = destination
        self._form = form
        self._timeout = timeout
        self._report = report
        self._rng = rng or Random()
        self._wall_ms = wall_ms
        self._topic: Topic | None = None
        self._partitioner: Partitioner
        # 0 if the daemon does not tell.
        self._message_bytes_max = 0
        # Of messages without a key: of all, or of the last one.
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
        self.failed = 1
        try:
            self._describe(create=False)
            for batch in self._batches(gathered):
                self._send(batch)
            self._settle()
        except (grpc.RpcError, CallFailed) as error:
            self.failure = error

    def _batches(
        self, gathered: "queue.Queue[list[bytes] | Exception | None]"
    ) -> Iterator[list[InputMessage]]:
        """Messages that have arrived, in batches of about `_BATCH_BYTES`."""
        batch: list[InputMessage] = []
        number = size = 0
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
            for line in chunk:
                number += 1
                try:
                    message = self._form.parse(number, line)
                    message_bytes = self._checked_size(message)
                except WrongInputError as error:
                    yield batch
                    self._settle()
                    self.failed = number
                    raise CallFailed(str(error)) from None
                if self._topic is None:
                    self._describe()
                if batch and (size + message_bytes > _BATCH_BYTES or len(batch) >= self._batch_messages):
                    yield batch
                    batch, size = [], 0
                batch.append(message)
                size += message_bytes
        if batch:
            yield batch

    @property
    def _batch_messages(self) -> int:
        assert self._topic is not None
        return _BATCH_MESSAGES if self._topic.partitions > _BATCH_MESSAGES else _BATCH_BYTES

    def _checked_size(self, message: InputMessage) -> int:
        """Bytes of a message in a batch, about."""
        _, key, value, headers = message
        size = len(key or b"") + len(value or b"")
        for name, content in headers:
            size += len(name.encode()) + len(content or b"")
        if 0 < self._message_bytes_max < size:
            raise WrongInputError(
                f"the message has {size} bytes, producer.max_message_bytes allows {self._message_bytes_max}"
            )
        return size + _RECORD_BYTES

    def _send(self, messages: Sequence[InputMessage]) -> None:
        """Append, after the append in flight."""
        if messages:
            places, request = self._request(messages)
            self._settle()
            self._start(messages, places, request)

    def _start(
        self,
        messages: Sequence[InputMessage],
        places: Mapping[int, Sequence[int]],
        request: "AppendRequest",
        descriptions: int = 0,
    ) -> None:
        answer = self._link.stub.Append.future(request, timeout=self._timeout)
        self._in_flight = _AppendCall(messages, places, answer, descriptions)

    def _settle(self) -> None:
        """Wait for the append in flight; what is rejected is sent again if that can help."""
        import grpc

        while (sent := self._in_flight) is not None:
            self._in_flight = None
            try:
                results = sent.answer.result().results
            except grpc.RpcError as error:
                status = status_name(error)
                if not self._try_again(sent, sent.messages, status, error):
                    self.in_doubt = len(sent.messages) if status in _PERHAPS_WRITTEN else 0
                    raise
            else:
                self._take(sent, results)

    def _take(self, sent: _AppendCall, results: "Sequence[AppendResult]") -> None:
        """Note the partitions that were written, and try those again that were not."""
        offsets: dict[int, tuple[int, int]] = {}
        refused: list[tuple[AppendResult, Sequence[int]]] = []
        for (partition, places), result in zip(sent.places.items(), results, strict=True):
            if result.code:
                refused.append((result, places))
            else:
                offsets |= {at: (partition, result.base_offset + nth) for nth, at in enumerate(places)}
        written = sorted(offsets)
        self.written += len(written)
        if written:
            self._link.answered()
            self._report(Written([sent.messages[at] for at in written], [offsets[at] for at in written]))
        if not refused:
            return
        first = min(refused, key=lambda each: each[1][0])[0]
        left = [sent.messages[at] for at in sorted(at for _, places in refused for at in places)]
        error = f"{_status(first.code)}: {first.message}"
        if not self._try_again(sent, left, _status(first.code), error):
            in_doubt = [places for result, places in refused if _status(result.code) in _PERHAPS_WRITTEN]
            self.in_doubt = sum(map(len, in_doubt))
            raise CallFailed(error)

    def _try_again(
        self, sent: _AppendCall, left: Sequence[InputMessage], status: str, error: "grpc.RpcError | str"
    ) -> bool:
        """Send again what is left of an append: rejected for the topic's version, or, in halves,
        for one of its messages; or not known to be written. False if that cannot help.
        """
        self.failed = left[0].number
        if status == "FAILED_PRECONDITION" and sent.descriptions < _DESCRIPTIONS_MAX:
            self._describe()
            self._start(left, *self._request(left), sent.descriptions + 1)
        elif status in _PERHAPS_SMALLER and len(left) > 1:
            half = len(left) // 2
            for messages in (left[:half], left[half:]):
                self._send(messages)
        elif status == "UNAVAILABLE" and self._link.again(error):
            self.repeated.update(message.number for message in left)
            self._start(left, *self._request(left))
        else:
            return False
        return True

    def _describe(self, *, create: bool = True) -> None:
        """Look up the topic, and select the partition.

        Args:
            create: create a missing topic, as Produce does.
        """
        import grpc

        from pixy.proto import pixy_log_pb2
        from pixy.records import make_partitioner

        wanted = self._destination
        request = pixy_log_pb2.DescribeTopicsRequest(
            cluster=wanted.cluster, topics=[wanted.topic], create_missing=create
        )
        while True:
            try:
                answer = self._link.stub.DescribeTopics(request, timeout=self._timeout)
                break
            except grpc.RpcError as error:
                if not self._link.again(error):
                    raise
        self._link.answered()
        self._message_bytes_max = answer.max_message_bytes
        if not answer.topics:
            if create:
                raise CallFailed(f"topic {wanted.topic} does not exist")
            return
        known, self._topic = self._topic, answer.topics[0]
        self._partitioner = make_partitioner(answer.partitioner, self._rng)
        if known is None or self._partition >= self._topic.partitions:
            self._partition = self._rng.randrange(self._topic.partitions)

    def _partition_of(self, message: InputMessage) -> int:
        assert self._topic is not None
        if message.key is not None:
            return self._partitioner(message.key, self._topic.partitions)
        if self._destination.spread:
            self._partition = (self._partition + 1) % self._topic.partitions
        return self._partition

    def _request(
        self, messages: Sequence[InputMessage]
    ) -> "tuple[Mapping[int, Sequence[int]], AppendRequest]":
        """The places of messages by partition, and the request."""
        from pixy.proto import pixy_log_pb2
        from pixy.records import NewRecord, build_batch

        topic, now = self._topic, self._wall_ms()
        assert topic is not None
        places: dict[int, list[int]] = {}
        for at, message in enumerate(messages):
            places.setdefault(self._partition_of(message), []).append(at)
        partitions = []
        for partition, some in places.items():
            batch = build_batch([NewRecord(*messages[at][1:], now) for at in some])
            partitions.append(
                pixy_log_pb2.PartitionBatches(topic=topic.topic, partition=partition, batches=bytes(batch))
            )
        version = pixy_log_pb2.TopicVersion(topic=topic.topic, version=topic.version, topic_id=topic.topic_id)
        return places, pixy_log_pb2.AppendRequest(
            cluster=self._destination.cluster, partitions=partitions, versions=[version]
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


def _status(code: int) -> str:
    import grpc

    names = {status.value[0]: status.name for status in grpc.StatusCode}
    return names.get(code, str(code))
