"""Client of the daemon's service `pixy.log.v1.Log`, for Python processes of drivers and executors.

Channels belong to the process that opened them: they are kept by process id, never pickled, and
shared by all tasks of a worker. A call without an answer, or without one in time, is retried until
its deadline with growing pauses, at the next address if there are several; `addresses` chooses it.
One that fails with RESOURCE_EXHAUSTED is retried at the same address. All calls are idempotent by
design of the service. Any other failure goes to the caller as one error that names the address, the
call and the cause.

With several addresses an attempt has a third of the deadline, so that a server that accepts calls
and answers none leaves time for the others.

A publication may take much longer than any other call to a live daemon, and nobody retries it for
the driver. So it has a deadline of its own, and each of its attempts has at most the deadline of
other calls.

A stream of batches has no deadline, because its reader may take as long as it likes. HTTP/2 PINGs
detect a dead peer; after a break the stream resumes at its position. The daemon ends a stream that
nobody has read for minutes, with CANCELLED.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import grpc

from pixy.elements_per_call import ELEMENTS_PER_CALL
from pixy.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PixyError,
    ResourceExhausted,
    Unavailable,
)
from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.spark.addresses import answered, avoid, next_place
from pixy.spark.connection import ConnectionOptions, Tls

T = TypeVar("T")

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),  # a response holds max_bytes, or one batch
    ("grpc.max_send_message_length", -1),  # the size of pieces is bounded by their writer
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # timeout of an attempt to connect
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.lookahead_bytes", 4 << 20),  # responses arrive while the last one is decoded
]
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_ATTEMPTS = 3
"""Attempts that time out within a deadline, with several addresses."""
_FETCH_BYTES = 1 << 20
_FETCH_WAIT_MS = 5000
"""A planned range exists. A new leader in Kafka that does not know it yet soon does."""

_ERRORS: dict[grpc.StatusCode, type[PixyError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
}

_RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)

_channels: dict[tuple[int, str, Tls | None], grpc.Channel] = {}


class FetchedRange(NamedTuple):
    """A response, with the index of its range."""

    range: int
    response: pb.FetchResponse


class LogClient:
    """The service at one or several addresses; cheap to create.

    Args:
        first: place of the address to begin at, wrapped to their number.
    """

    def __init__(self, connection: ConnectionOptions, first: int = 0) -> None:
        self._connection = connection
        # Index of the address that answered last. Invariant: in range.
        self._current = first % len(connection.addresses)

    def describe(
        self, topics: Sequence[str] = (), *, create_missing: bool = False
    ) -> pb.DescribeTopicsResponse:
        """# pixy_log.proto: DescribeTopics"""
        answer = pb.DescribeTopicsResponse()
        for some in _parts(topics):
            answer.MergeFrom(self._describe(some, create_missing))
        return answer

    def _describe(self, topics: Sequence[str], create_missing: bool) -> pb.DescribeTopicsResponse:
        request = pb.DescribeTopicsRequest(
            cluster=self._connection.cluster, topics=topics, create_missing=create_missing
        )
        return self._call(
            "DescribeTopics", lambda stub, seconds: stub.DescribeTopics(request, timeout=seconds)
        )

    def list_offsets(self, queries: Sequence[pb.OffsetQuery]) -> Sequence[pb.OffsetAnswer]:
        """# pixy_log.proto: ListOffsets"""
        return [answer for some in _parts(queries) if some for answer in self._list_offsets(some)]

    def _list_offsets(self, queries: Sequence[pb.OffsetQuery]) -> Sequence[pb.OffsetAnswer]:
        request = pb.ListOffsetsRequest(cluster=self._connection.cluster, queries=queries)
        return self._call(
            "ListOffsets", lambda stub, seconds: stub.ListOffsets(request, timeout=seconds)
        ).answers

    def stage(self, request: pb.StageRequest) -> pb.StageResponse:
        """# pixy_log.proto: Stage"""
        request.cluster = self._connection.cluster
        return self._call("Stage", lambda stub, seconds: stub.Stage(request, timeout=seconds))

    def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        """# pixy_log.proto: Publish"""
        request.cluster = self._connection.cluster
        return self._call("Publish", lambda stub, seconds: stub.Publish(request, timeout=seconds))

    def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        """# pixy_log.proto: Discard"""
        for some in _parts(stage_ids):
            self._discard(sink_id, some)

    def _discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        request = pb.DiscardRequest(cluster=self._connection.cluster, sink_id=sink_id, stage_ids=stage_ids)
        self._call("Discard", lambda stub, seconds: stub.Discard(request, timeout=seconds))

    def keep_alive(self, sink_id: str) -> None:
        """Prevent the stages of a sink from expiring."""
        self.discard(sink_id, ())

    def fetch(self, ranges: Sequence[pb.FetchRange]) -> Generator[FetchedRange, None, None]:
        """Responses, range by range, each with the index of its range; see pixy_log.proto: Fetch.

        Resumes at its position after a break. The ranges are not changed. Closing the iterator ends
        the call.
        """
        left = [(number, _copy(each)) for number, each in enumerate(ranges)]
        attempts = _Attempts(self._connection, "Fetch", self._current)
        while left:
            request = pb.FetchRequest(
                cluster=self._connection.cluster,
                ranges=[each for _, each in left[:ELEMENTS_PER_CALL]],
                max_bytes=_FETCH_BYTES,
                max_wait_ms=_FETCH_WAIT_MS,
            )
            call = LogStub(_channel(attempts.address, self._connection.tls)).Fetch(request)
            done = 0
            try:
                for response in call:
                    answered(attempts.address)
                    number, position = left[response.range]
                    position.from_offset = response.next_offset
                    if response.state != pb.MORE:
                        done = response.range + 1
                    yield FetchedRange(number, response)
                    # However long the reader took, the deadline of the next response starts here.
                    attempts.restart_deadline()
                if done < len(request.ranges):
                    raise PixyError(
                        f"Fetch at pixy {attempts.address} ended after {done} of {len(request.ranges)} ranges"
                    )
            except grpc.RpcError as error:
                attempts.failed(error)
            finally:
                call.cancel()
            left = left[done:]
        self._current = attempts.place

    def _call(self, name: str, call: Callable[[LogStub, float], T]) -> T:
        attempts = _Attempts(self._connection, name, self._current)
        while True:
            stub = LogStub(_channel(attempts.address, self._connection.tls))
            try:
                result = call(stub, attempts.seconds())
            except grpc.RpcError as error:
                attempts.failed(error)
            else:
                answered(attempts.address)
                self._current = attempts.place
                return result


class _Attempts:
    """Retry policy of one call: decides after each failure on another attempt and its address."""

    def __init__(self, connection: ConnectionOptions, name: str, place: int) -> None:
        self._connection = connection
        self._name = name
        self._seconds, self._option = connection.timeout_seconds, "pixy.timeoutMs"
        if name == "Publish":
            self._seconds, self._option = connection.publish_timeout_seconds, "pixy.publishTimeoutMs"
        # Index of the address to call. Invariant: in range.
        self.place = next_place(connection.addresses, place)
        self._attempt_seconds = connection.timeout_seconds
        if len(connection.addresses) > 1:
            self._attempt_seconds = min(self._attempt_seconds, self._seconds / _ATTEMPTS)
        self.restart_deadline()

    def restart_deadline(self) -> None:
        """Restart the deadline, because a response has arrived."""
        self._until = time.monotonic() + self._seconds
        self._pause = _FIRST_PAUSE_SECONDS
        # Failures since the last response, by address.
        self._failures: dict[str, tuple[grpc.StatusCode, str]] = {}

    @property
    def address(self) -> str:
        return self._connection.addresses[self.place]

    def seconds(self) -> float:
        """Timeout of this attempt."""
        return max(min(self._seconds_left(), self._attempt_seconds), 0.001)

    def failed(self, error: grpc.RpcError) -> None:
        """Wait until it is time for the next attempt.

        Raises:
            PixyError: no attempt is left.
        """
        code, details = error.code(), error.details() or error.code().name
        if code is grpc.StatusCode.UNIMPLEMENTED:
            details = f"the server there has no service pixy.log.v1.Log ({details})"
        if code not in _RETRIED:
            kind = _ERRORS.get(code, PixyError)
            cluster = self._connection.cluster
            where = f"{self.address}, pixy.cluster {cluster!r}," if cluster else self.address
            raise kind(f"{self._name} at pixy {where} failed with {code.name}: {details}") from None
        earlier = self._failures.get(self.address)
        if earlier and code is grpc.StatusCode.DEADLINE_EXCEEDED and self._seconds_left() <= self._pause:
            # The deadline of all attempts has cut the last one short: the answer before says more.
            raise self._exhausted(earlier[0]) from None
        self._failures[self.address] = code, details
        if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            addresses = self._connection.addresses
            if code is not grpc.StatusCode.CANCELLED:
                avoid(self.address)
            self.place = next_place(addresses, self.place + 1)
            if addresses[self.place] not in self._failures:
                return
        if self._seconds_left() <= self._pause:
            raise self._exhausted(code) from None
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _exhausted(self, code: grpc.StatusCode) -> PixyError:
        full = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        kind, what = (
            (ResourceExhausted, "pixy had no capacity for it")
            if full
            else (Unavailable, "pixy did not answer")
        )
        causes = "; ".join(
            f"{address}: {self._failures[address][1]}"
            for address in self._connection.addresses
            if address in self._failures
        )
        return kind(f"{self._name}: {what} within {self._seconds:g} s ({self._option}): {causes}")

    def _seconds_left(self) -> float:
        return self._until - time.monotonic()


def _parts(elements: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts that fit into a request each; one without elements if there are none."""
    for at in range(0, max(len(elements), 1), ELEMENTS_PER_CALL):
        yield elements[at : at + ELEMENTS_PER_CALL]


def _copy(given: pb.FetchRange) -> pb.FetchRange:
    copied = pb.FetchRange()
    copied.CopyFrom(given)
    return copied


def _channel(address: str, tls: Tls | None) -> grpc.Channel:
    """The channel of this process to the address."""
    key = (os.getpid(), address, tls)
    channel = _channels.get(key)
    if channel is None:
        channel = _channels[key] = _open(address, tls)
    return channel


def _open(address: str, tls: Tls | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    options = list(_OPTIONS)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(
        _read(tls.ca_path, "pixy.tls.caPath"),
        _read(tls.key_path, "pixy.tls.keyPath"),
        _read(tls.certificate_path, "pixy.tls.certificatePath"),
    )
    return grpc.secure_channel(address, credentials, options=options)


def _read(path: str | None, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgument(
            f"option {option} is {path!r}: the file cannot be read: {error.strerror}"
        ) from None
