"""One of the two clusters, by its API for clients.

A failed call is an error of `pixy.errors`. Nothing is repeated here: whoever mirrors begins again
from what the target has.

    status of the answer                            error
    ----------------------------------------------  ------------------------------------------------
    INVALID_ARGUMENT                                InvalidArgument: the same the next time
    UNIMPLEMENTED, UNAUTHENTICATED,                 Refused: the same the next time
    PERMISSION_DENIED
    NOT_FOUND                                       NotFound
    ALREADY_EXISTS                                  TopicExists
    FAILED_PRECONDITION                             FailedPrecondition
    any other                                       Unavailable: it may pass
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import grpc

from pixy.elements_per_call import ELEMENTS_PER_CALL
from pixy.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PixyError,
    TopicExists,
    Unavailable,
)
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.records import TopicPartition

T = TypeVar("T")

FETCH_BYTES = 1 << 20
_FETCH_WAIT_MS = 5000
"""Time that a replica has to get records which another one has."""

OpenChannel = Callable[[], grpc.Channel]
"""Opens a channel; raises PixyError if nobody accepts a connection."""


class Refused(PixyError):
    """A daemon refuses a call, and will the next time."""

    grpc_status = 9


_ERRORS: dict[grpc.StatusCode, type[PixyError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.UNIMPLEMENTED: Refused,
    grpc.StatusCode.UNAUTHENTICATED: Refused,
    grpc.StatusCode.PERMISSION_DENIED: Refused,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: TopicExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
}


class ClusterClient:
    """A cluster.

    Args:
        side: source or target, for messages.
        open_channel: see `OpenChannel`.
        cluster: its name at the daemon, empty for the default one.
        timeout_s: of a call.
    """

    def __init__(self, side: str, open_channel: OpenChannel, cluster: str, timeout_s: float) -> None:
        self.side = side
        self.cluster = cluster
        self._open_channel = open_channel
        self._timeout_s = timeout_s
        self._channel: grpc.Channel | None = None

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def call(self, stub: Callable[[grpc.Channel], Any], method: str, request: Any) -> Any:
        """The answer to a call; its cluster is set here.

        Raises:
            PixyError: see the table above.
        """
        return self.result(self.begin(stub, method, request))

    def begin(self, stub: Callable[[grpc.Channel], Any], method: str, request: Any) -> Any:
        """Begin a call; `result` waits for its answer."""
        request.cluster = self.cluster
        return getattr(stub(self._connected()), method).future(request, timeout=self._timeout_s)

    def result(self, call: Any) -> Any:
        """The answer to a call that was begun.

        Raises:
            PixyError: see the table above.
        """
        try:
            return call.result()
        except grpc.RpcError as error:
            raise self._error(error) from error

    def fetch(self, ranges: Sequence[log_pb.FetchRange]) -> Iterator[log_pb.FetchResponse]:
        """Answers of ranges, in their order. Closing the iterator ends the call.

        Raises:
            PixyError: see the table above.
        """
        request = log_pb.FetchRequest(
            cluster=self.cluster, ranges=ranges, max_bytes=FETCH_BYTES, max_wait_ms=_FETCH_WAIT_MS
        )
        call = LogStub(self._connected()).Fetch(request)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._error(error) from error
        finally:
            call.cancel()

    def ends(
        self, partitions: Sequence[TopicPartition], *, begins: bool = False
    ) -> dict[TopicPartition, int]:
        """Ends, or begins, of the partitions that exist."""
        found: dict[TopicPartition, int] = {}
        for at in range(0, len(partitions), ELEMENTS_PER_CALL):
            some = partitions[at : at + ELEMENTS_PER_CALL]
            queries = [
                log_pb.OffsetQuery(topic=topic, partition=number, earliest=True)
                if begins
                else log_pb.OffsetQuery(topic=topic, partition=number, latest=True)
                for topic, number in some
            ]
            answers = self.call(LogStub, "ListOffsets", log_pb.ListOffsetsRequest(queries=queries)).answers
            for partition, answer in zip(some, answers, strict=True):
                if not answer.unknown_partition:
                    found[partition] = answer.offset
        return found

    def topics(self, names: Sequence[str] = ()) -> dict[str, log_pb.Topic]:
        """Topics by name, all or those of the names that exist."""
        found: dict[str, log_pb.Topic] = {}
        for at in range(0, max(len(names), 1), ELEMENTS_PER_CALL):
            request = log_pb.DescribeTopicsRequest(topics=names[at : at + ELEMENTS_PER_CALL])
            described = self.call(LogStub, "DescribeTopics", request)
            found.update({topic.topic: topic for topic in described.topics})
        return found

    def _connected(self) -> grpc.Channel:
        if self._channel is None:
            try:
                self._channel = self._open_channel()
            except PixyError as error:
                raise Unavailable(f"{self.side}: {error}") from error
        return self._channel

    def _error(self, error: Any) -> PixyError:
        code, details = error.code(), " ".join((error.details() or "").split())
        kind = _ERRORS.get(code, Unavailable)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            details = f"the daemon has an older release, or is not pixy ({details})"
        return kind(f"{self.side}: {code.name}: {details}")
