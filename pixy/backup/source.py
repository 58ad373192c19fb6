"""The cluster that is backed up, by its API for clients.

State and ends of partitions are asked for at the given address. Records come from the nodes with
replicas, followers first: they have the same bytes as leaders, and less to do. A node that cannot
be reached, or lags, is left for another one; the given address is the last. Nothing that a node
says of one topic is taken for another one of the same name: ranges name the topic's id.

All methods block, and may be called from several threads.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import grpc

from pixy.errors import FailedPrecondition, PixyError, Unavailable
from pixy.proto import pixy_cluster_pb2 as cluster_pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.records import OffsetRange, TopicPartition

T = TypeVar("T")

_FETCH_BYTES = 1 << 20
_CALL_S, _STATE_S = 90.0, 900.0
_QUERIES_MAX = 1000
_PAUSE_S, _PAUSE_MAX_S = 0.2, 5.0
_FATAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)
"""Answers that are the same the next time, and at any node."""

OpenChannel = Callable[[str], grpc.Channel]
"""Opens a channel to an address; an empty one is the given address."""


class WantedRange(NamedTuple):
    """Records of a partition from one offset up to another."""

    partition: TopicPartition
    topic_id: bytes
    begin: int
    end: int


class GivenBatches(NamedTuple):
    """Consecutive whole batches, and the offset behind them."""

    batches: bytes
    next_offset: int


class BegunLater(Exception):
    """Records of a range were removed by retention: the log begins at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the log begins at offset {offset}")
        self.offset = offset


class TopicGone(Exception):
    """The topic was deleted."""


class Stopped(Exception):
    """Another thread has failed."""


class ClusterSource:
    """A running cluster.

    Args:
        open_channel: see `OpenChannel`; raises PixyError if nobody accepts a connection.
        cluster: name of the cluster at the daemon, empty for the default one.
        give_up_s: seconds without anything new after which a call, or a range, has failed.
        lag_s: seconds that a replica has to get records which its leader has.

    Attributes:
        addresses: of the nodes with replicas of each partition by its name, in the order in which
            they are asked.
        stopped: set to end all calls soon.
    """

    def __init__(
        self, open_channel: OpenChannel, cluster: str = "", give_up_s: float = 120.0, lag_s: float = 5.0
    ) -> None:
        self._open_channel = open_channel
        self._cluster = cluster
        self._give_up_s = give_up_s
        self._lag_ms = round(lag_s * 1000)
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self.addresses: Mapping[str, Sequence[str]] = {}
        self.stopped = threading.Event()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    # --- calls ------------------------------------------------------------------------------------

    def state(self) -> list[bytes]:
        """The state beside the records: encoded `ExportStateResponse`s, whose concatenation is
        another one.
        """
        request = cluster_pb.ExportStateRequest(cluster=self._cluster)
        return self._call(
            lambda channel: [
                answer.SerializeToString()
                for answer in ClusterStub(channel).ExportState(request, timeout=_STATE_S)
            ]
        )

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Begins and ends of partitions, of those that exist."""
        found: dict[TopicPartition, OffsetRange] = {}
        for at in range(0, len(partitions), _QUERIES_MAX):
            some = partitions[at : at + _QUERIES_MAX]
            queries = [log_pb.OffsetQuery(topic=t, partition=n, earliest=True) for t, n in some]
            queries += [log_pb.OffsetQuery(topic=t, partition=n, latest=True) for t, n in some]
            request = log_pb.ListOffsetsRequest(cluster=self._cluster, queries=queries)
            answers = self._call(partial(_list_offsets, request)).answers
            for number, partition in enumerate(some):
                begin, end = answers[number], answers[number + len(some)]
                if not (begin.unknown_partition or end.unknown_partition):
                    found[partition] = OffsetRange(begin.offset, end.offset)
        return found

    def topic_ids(self) -> dict[str, bytes]:
        """Ids of all topics, by name."""
        request = log_pb.DescribeTopicsRequest(cluster=self._cluster)
        described = self._call(lambda channel: LogStub(channel).DescribeTopics(request, timeout=_CALL_S))
        return {topic.topic: topic.topic_id for topic in described.topics}

    def look_for_replicas(self) -> None:
        """Ask for the nodes with replicas; without an answer the given address gives all."""
        request = cluster_pb.StatusRequest(cluster=self._cluster)
        with suppress(PixyError):
            status = self._call(lambda channel: ClusterStub(channel).Status(request, timeout=_CALL_S))
            self.addresses = replica_addresses(status)

    def fetch(self, wanted: WantedRange) -> Iterator[GivenBatches]:
        """Batches of a range, from one node after the other.

        Raises:
            BegunLater, TopicGone, Stopped: see there.
            Unavailable: no node has given anything for `give_up_s`.
            PixyError: a node has refused the request.
        """
        addresses = [*self.addresses.get("{}-{}".format(*wanted.partition), ()), ""]
        turn, pause_s = 0, _PAUSE_S
        give_up_at = time.monotonic() + self._give_up_s
        while wanted.begin < wanted.end:
            address = addresses[turn % len(addresses)]
            reason = ""
            try:
                for fetched in self._fetch_from(address, wanted):
                    yield fetched
                    wanted = wanted._replace(begin=fetched.next_offset)
                    give_up_at, pause_s = time.monotonic() + self._give_up_s, _PAUSE_S
                reason = "it does not have the records yet"
            except (grpc.RpcError, Unavailable) as error:
                reason = self._reason(error, address)
            except TopicGone:
                if self.topic_ids().get(wanted.partition.topic) != wanted.topic_id:
                    raise
                reason = "it does not know the topic"
            if wanted.begin == wanted.end:
                return
            turn += 1
            if time.monotonic() > give_up_at:
                where = f"partition {wanted.partition.partition} of topic {wanted.partition.topic}"
                raise Unavailable(
                    f"no node gives the records of {where} from offset {wanted.begin} on: {reason}"
                )
            if turn % len(addresses) == 0:
                self._pause(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _fetch_from(self, address: str, wanted: WantedRange) -> Iterator[GivenBatches]:
        partition = wanted.partition
        request = log_pb.FetchRequest(
            cluster=self._cluster,
            ranges=[
                log_pb.FetchRange(
                    topic=partition.topic,
                    partition=partition.partition,
                    from_offset=wanted.begin,
                    to_offset=wanted.end,
                    topic_id=wanted.topic_id,
                )
            ],
            max_bytes=_FETCH_BYTES,
            max_wait_ms=self._lag_ms,
        )
        call = LogStub(self._channel(address)).Fetch(request)
        try:
            for answer in call:
                if answer.state == log_pb.UNKNOWN_PARTITION:
                    raise TopicGone
                if answer.state == log_pb.OFFSET_OUT_OF_RANGE:
                    if answer.log_begin_offset > wanted.begin:
                        raise BegunLater(min(answer.log_begin_offset, wanted.end))
                    return
                if answer.batches:
                    yield GivenBatches(answer.batches, min(answer.next_offset, wanted.end))
                    wanted = wanted._replace(begin=answer.next_offset)
                self._check_stopped()
        finally:
            call.cancel()

    # --- connections ------------------------------------------------------------------------------

    def _call(self, call: Callable[[grpc.Channel], T]) -> T:
        """The answer of a node at the given address, by as many attempts as it takes."""
        give_up_at, pause_s = time.monotonic() + self._give_up_s, _PAUSE_S
        while True:
            try:
                return call(self._channel(""))
            except (grpc.RpcError, Unavailable) as error:
                reason = self._reason(error, "")
            if time.monotonic() > give_up_at:
                raise Unavailable(reason)
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            channel = self._channels.get(address)
        if channel is None:
            try:
                channel = self._open_channel(address)
            except PixyError as error:
                raise Unavailable(str(error)) from error
            with self._lock:
                self._channels[address] = channel
        return channel

    def _reason(self, error: Any, address: str) -> str:
        """Reason of a failure that may pass; the next call connects anew.

        Raises:
            FailedPrecondition: it does not pass.
        """
        if isinstance(error, Unavailable):
            return str(error)
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise FailedPrecondition("the daemon has a release without backups, or is not pixy") from error
        if code in _FATAL:
            raise FailedPrecondition(f"{code.name}: {details}") from error
        if code is grpc.StatusCode.UNAVAILABLE:
            with self._lock:
                self._channels.pop(address, None)  # others may use it yet
        return f"{code.name}: {details}"

    def _pause(self, seconds: float) -> None:
        self.stopped.wait(seconds)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise Stopped


def _list_offsets(request: log_pb.ListOffsetsRequest, channel: grpc.Channel) -> log_pb.ListOffsetsResponse:
    return LogStub(channel).ListOffsets(request, timeout=_CALL_S)


def replica_addresses(status: cluster_pb.StatusResponse) -> dict[str, list[str]]:
    """Addresses for clients of the nodes with replicas of each partition, by its name: followers
    first, of which every node is the first one for as many partitions.
    """
    addresses = {node.node_id: node.grpc_address for node in status.nodes if node.up and node.grpc_address}
    found: dict[str, list[str]] = {}
    for number, group in enumerate(each for each in status.groups if each.is_partition):
        damaged = {each.node_id for each in group.damaged}
        voters = [each for each in group.voters if each in addresses and each not in damaged]
        followers = [each for each in voters if each != group.leader]
        shift = number % len(followers) if followers else 0
        order = [*followers[shift:], *followers[:shift], *(each for each in voters if each == group.leader)]
        found[group.name] = [addresses[each] for each in order]
    return found


def joined(pieces: Iterable[bytes]) -> cluster_pb.ExportStateResponse:
    """The state in the pieces of an export."""
    return cluster_pb.ExportStateResponse.FromString(b"".join(pieces))
