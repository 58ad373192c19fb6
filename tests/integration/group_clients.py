"""Clients of one consumer group at nodes of a cluster, or behind a load balancer."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import CHANNEL_OPTIONS
from tests.integration.ledger import Position

SECONDS_MAX = 60.0
_PAUSE_S = 0.05


class Message(NamedTuple):
    """A message that a consumer got, and when."""

    value: bytes
    position: Position
    at: float


class GroupClient:
    """Blocking calls for one topic and group.

    Args:
        address: of a node or of a balancer.
        topic, group: of all calls.
        reconnects: each call has a connection of its own.
    """

    def __init__(self, address: str, topic: str, group: str, *, reconnects: bool = False) -> None:
        self._address = address
        self.topic = topic
        self.group = group
        self._reconnects = reconnects
        self._channel = None if reconnects else grpc.insecure_channel(address, options=CHANNEL_OPTIONS)

    def __enter__(self) -> "GroupClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is not None:
            self._channel.close()

    @contextmanager
    def _stub(self) -> Iterator[KafkaPixyStub]:
        if self._channel is not None:
            yield KafkaPixyStub(self._channel)
            return
        with grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            yield KafkaPixyStub(channel)

    def produce(self, value: bytes, key: bytes | None = None) -> Position:
        """Produce a message; its key is its value by default."""
        request = pb.ProdRq(topic=self.topic, key_value=value if key is None else key, message=value)
        with self._stub() as stub:
            answer = stub.Produce(request, timeout=SECONDS_MAX)
        return Position(self.topic, answer.partition, answer.offset)

    def consume(self, ack: Position | None = None, *, timeout: float = SECONDS_MAX) -> Message | None:
        """A message, None if none comes in time; the ack of another one rides along."""
        request = pb.ConsNAckRq(topic=self.topic, group=self.group, no_ack=ack is None)
        if ack is not None:
            request.ack_partition, request.ack_offset = ack.partition, ack.offset
        try:
            with self._stub() as stub:
                answer = stub.ConsumeNAck(request, timeout=timeout)
        except grpc.RpcError as error:
            if code_of(error) is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        position = Position(self.topic, answer.partition, answer.offset)
        return Message(answer.message, position, time.monotonic())

    def ack(self, position: Position) -> None:
        request = pb.AckRq(
            topic=self.topic, group=self.group, partition=position.partition, offset=position.offset
        )
        with self._stub() as stub:
            stub.Ack(request, timeout=SECONDS_MAX)

    def set_offsets(self, offsets: dict[int, int]) -> None:
        entries = [pb.PartitionOffset(partition=number, offset=offset) for number, offset in offsets.items()]
        request = pb.SetOffsetsRq(topic=self.topic, group=self.group, offsets=entries)
        with self._stub() as stub:
            stub.SetOffsets(request, timeout=SECONDS_MAX)

    def offsets(self) -> list[pb.PartitionOffset]:
        request = pb.GetOffsetsRq(topic=self.topic, group=self.group)
        with self._stub() as stub:
            return list(stub.GetOffsets(request, timeout=SECONDS_MAX).offsets)

    def consumers(self) -> dict[str, list[int]]:
        """Owned partitions by client id; empty if the group does not consume."""
        request = pb.ListConsumersRq(topic=self.topic, group=self.group)
        try:
            with self._stub() as stub:
                found = stub.ListConsumers(request, timeout=SECONDS_MAX).groups[self.group].consumers
        except grpc.RpcError as error:
            if code_of(error) is grpc.StatusCode.NOT_FOUND:
                return {}
            raise
        return {client: list(each.partitions) for client, each in sorted(found.items())}

    def wait_acked(self, count: int, seconds: float) -> None:
        """Wait until so many messages are acked and committed, and no other is there.

        Args:
            seconds: longest time that may take.
        """
        began = time.monotonic()

        def is_caught_up() -> bool:
            found = self.offsets()
            return sum(each.offset for each in found) == count and not any(
                each.lag or each.sparse_acks for each in found
            )

        until_blocking(is_caught_up, lambda: f"{self.offsets()}")
        took = time.monotonic() - began
        assert took < seconds, f"the last ack was committed after {took:.1f} s"

    def owners(self, cluster: Cluster) -> dict[int, ClusterNode]:
        """The owner of each partition that has one."""
        found = {}
        for client_id, numbers in self.consumers().items():
            owner = next(node for node in cluster.running if client_id.endswith(f"_{node.process.pid}"))
            found.update(dict.fromkeys(numbers, owner))
        return found


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status of a failed call."""
    call: Any = error  # of a class that is a `Call` too
    code: grpc.StatusCode = call.code()
    return code


class GroupConsumers:
    """Consumers that run during the `with` block, each in a thread. Each acks a message with its
    next request, and the last one by `Ack`.

    Args:
        addresses: of each consumer.
        topic, group: of all of them.
        reconnects: each call has a connection of its own.

    Attributes:
        got: messages in the order in which they came.
        failed: other failures than that no message came.
    """

    def __init__(self, addresses: Sequence[str], topic: str, group: str, *, reconnects: bool = False) -> None:
        self.got: list[Message] = []
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._consume, args=(GroupClient(address, topic, group, reconnects=reconnects),)
            )
            for address in addresses
        ]

    def __enter__(self) -> "GroupConsumers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End them all; their last messages are acked."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def times(self) -> Counter[bytes]:
        """Number of times that each message has come."""
        return Counter(message.value for message in list(self.got))

    def wait_got(self, count: int) -> None:
        """Wait for so many different messages."""
        until_blocking(lambda: len(self.times()) >= count, lambda: f"{len(self.times())}, {self.failed[-5:]}")

    def _consume(self, client: GroupClient) -> None:
        ack: Position | None = None
        with client:
            while ack is not None or not self._stop.is_set():
                try:
                    if self._stop.is_set():
                        assert ack is not None
                        client.ack(ack)
                        return
                    message = client.consume(ack)
                except grpc.RpcError as error:
                    self.failed.append(f"{client.group}: {code_of(error)} {error}")
                    time.sleep(_PAUSE_S)
                    continue
                ack = None
                if message is not None:
                    self.got.append(message)
                    ack = message.position
