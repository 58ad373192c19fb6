"""A consumer of a group for a command: batches of messages, and acks of those that were printed.

A daemon hands out what is at hand in one call (ConsumeBatch of pixy_log.proto), with which the acks
of the batch before are sent. An older daemon does not know that call, and hands out messages one by
one.

No topic is created for a command, unless it says so: a daemon would create one that is deleted
while a consumer polls it.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pixy.cli.connection import CallFailed, DaemonConnection, status_name
from pixy.cli.message_output import ShownMessage
from pixy.cli.output import readable_bytes, report_error
from pixy.cli.reconnection import ReconnectingStub

if TYPE_CHECKING:
    import grpc

    from pixy.proto.kafkapixy_pb2 import ConsRs
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
    from pixy.proto.pixy_log_pb2 import ConsumedMessage
    from pixy.proto.pixy_log_pb2_grpc import LogStub

_BATCH_MAX = 1000
"""The daemon's maximum of `max_messages`."""
_LAST_ACK_SECONDS = 5.0
_TOPIC_LOOK_SECONDS = 0.5
"""Pause between two looks for a topic that was deleted."""


@dataclass(frozen=True, slots=True)
class ConsumingStubs:
    """The services of a consumer."""

    messages: "KafkaPixyStub"
    log: "LogStub"


def make_stubs(channel: "grpc.Channel") -> ConsumingStubs:
    """The stubs of a channel."""
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
    from pixy.proto.pixy_log_pb2_grpc import LogStub

    return ConsumingStubs(KafkaPixyStub(channel), LogStub(channel))


@dataclass(slots=True)
class GroupConsumer:
    """Requests messages and acknowledges printed ones.

    The acks are sent with the request for the next messages, or on their own after the last. They
    are sent again while there is no answer: an ack of what is acknowledged changes nothing.
    """

    connection: DaemonConnection
    link: ReconnectingStub[ConsumingStubs]
    topic: str
    group: str
    no_ack: bool
    auto_ack: bool
    # The topic is created if it is deleted meanwhile.
    creates: bool = False
    # A deleted topic is waited for.
    waits: bool = False
    # Positions of printed messages that are not acknowledged, as far as is known.
    unacked: list[tuple[int, int]] = field(default_factory=list, init=False)
    # The daemon knows ConsumeBatch, as far as is known.
    _batches: bool = field(default=True, init=False)
    # The deletion of the topic was reported.
    _told: bool = field(default=False, init=False)

    def batches(self, wait: float | None, count: int) -> Iterator[Sequence[ShownMessage]]:
        """Messages, `count` at most (0: any number), until none arrives for `wait` seconds. On any
        exit, printed messages are acknowledged.
        """
        import grpc

        left = count
        try:
            while messages := self._next(wait, min(left, _BATCH_MAX) if count else _BATCH_MAX):
                left -= len(messages)
                yield messages
        except (KeyboardInterrupt, grpc.RpcError):
            self._ack_at_last()
            raise

    def printed(self, messages: Sequence[ShownMessage]) -> None:
        """Mark messages as printed, which makes them due for an ack."""
        if not self.no_ack and not self.auto_ack:
            self.unacked += [(message.partition, message.offset) for message in messages]

    def finish(self) -> None:
        """Acknowledges the last messages."""
        import grpc

        until = time.monotonic() + self.connection.timeout
        while self.unacked:
            try:
                self._ack_all(self.connection.timeout)
            except grpc.RpcError as error:
                if not self.link.again(error, until):
                    raise CallFailed(self._not_confirmed(error)) from error

    def _next(self, wait: float | None, most: int) -> Sequence[ShownMessage]:
        """Messages, none if none arrives for `wait` seconds."""
        import grpc

        deadline = None if wait is None else time.monotonic() + wait
        timeout = self.connection.timeout
        while deadline is None or (left := deadline - time.monotonic()) > 0:
            poll = timeout if deadline is None else min(timeout, left)
            try:
                messages = self._many(most, poll) if self._batches else [self._one(poll)]
            except grpc.RpcError as error:
                status = status_name(error)
                if status == "UNIMPLEMENTED" and self._batches:
                    self._batches = False
                elif status == "NOT_FOUND":
                    self.link.answered()
                    self.unacked = []
                elif status == "INVALID_ARGUMENT" and self._is_deleted():
                    self._wait_for_topic(deadline)
                elif status != "DEADLINE_EXCEEDED" and not self.link.again(error, deadline):
                    raise
            else:
                self.link.answered()
                self.unacked, self._told = [], False
                return messages
        return []

    def _is_deleted(self) -> bool:
        """True if the topic does not exist."""
        try:
            check_topic(self.connection, self.link, self.topic)
        except CallFailed:
            return True
        return False

    def _wait_for_topic(self, deadline: float | None) -> None:
        """Pause because the topic was deleted, unless the command ends with it.

        Raises:
            CallFailed: it does.
        """
        self.unacked = []
        if not self.waits:
            raise CallFailed(f"topic {self.topic} was deleted")
        if not self._told:
            self._told = True
            report_error(f"topic {self.topic} was deleted; waiting until it exists again")
        left = _TOPIC_LOOK_SECONDS if deadline is None else deadline - time.monotonic()
        time.sleep(max(0.0, min(_TOPIC_LOOK_SECONDS, left)))

    def _many(self, most: int, poll: float) -> Sequence[ShownMessage]:
        from pixy.proto import pixy_log_pb2

        request = pixy_log_pb2.ConsumeBatchRequest(
            cluster=self.connection.cluster,
            topic=self.topic,
            group=self.group,
            max_messages=most,
            auto_ack=self.auto_ack,
            must_exist=not self.creates,
            acks=[pixy_log_pb2.MessagePosition(partition=each[0], offset=each[1]) for each in self.unacked],
        )
        answer = self.link.stub.log.ConsumeBatch(request, timeout=poll)
        return [_shown_of_batch(self.topic, message) for message in answer.messages]

    def _one(self, poll: float) -> ShownMessage:
        from pixy.proto import kafkapixy_pb2

        request = kafkapixy_pb2.ConsNAckRq(
            cluster=self.connection.cluster, topic=self.topic, group=self.group, auto_ack=self.auto_ack
        )
        if self.unacked:
            ((request.ack_partition, request.ack_offset),) = self.unacked
        else:
            request.no_ack = not self.auto_ack
        return _shown(self.topic, self.link.stub.messages.ConsumeNAck(request, timeout=poll))

    def _ack_all(self, timeout: float) -> None:
        while self.unacked:
            acknowledge(
                self.connection, self.link.stub.messages, self.topic, self.group, self.unacked[0], timeout
            )
            del self.unacked[0]

    def _ack_at_last(self) -> None:
        import grpc

        try:
            self._ack_all(min(self.connection.timeout, _LAST_ACK_SECONDS))
        except grpc.RpcError as error:
            report_error(self._not_confirmed(error))

    def _not_confirmed(self, error: "grpc.RpcError") -> str:
        """The request for the next messages may have acknowledged them."""
        partition, offset = self.unacked[-1]
        place = f"{self.topic}/{partition} at offset {offset}"
        count = len(self.unacked)
        last = f"last message, {place}," if count == 1 else f"last {count} messages, up to {place},"
        what = "the message" if count == 1 else "messages"
        return (
            f"the acknowledgement of the {last} is not confirmed: {what} may be redelivered: "
            f"{self.connection.failure(error)}"
        )


def check_topic(connection: DaemonConnection, link: ReconnectingStub[ConsumingStubs], topic: str) -> None:
    """Reject a topic that does not exist, because consuming would create it."""
    import grpc

    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.GetTopicMetadataRq(cluster=connection.cluster, topic=topic)
    try:
        link.stub.messages.GetTopicMetadata(request, timeout=connection.timeout)
    except grpc.RpcError as error:
        if status_name(error) != "NOT_FOUND":
            raise
        raise CallFailed(f"topic {topic} does not exist; create it with --create") from None
    link.answered()


def create_topic(connection: DaemonConnection, topic: str) -> None:
    """Create a topic, unless it exists."""
    import grpc

    from pixy.proto import pixy_topics_pb2

    request = pixy_topics_pb2.CreateTopicRequest(cluster=connection.cluster, topic=topic)
    with connection.open_topics() as stub:
        try:
            stub.CreateTopic(request, timeout=connection.timeout)
        except grpc.RpcError as error:
            if status_name(error) != "ALREADY_EXISTS":
                raise


def acknowledge(
    connection: DaemonConnection,
    stub: "KafkaPixyStub",
    topic: str,
    group: str,
    position: tuple[int, int],
    timeout: float,
) -> None:
    """Acknowledge one message."""
    from pixy.proto import kafkapixy_pb2

    partition, offset = position
    request = kafkapixy_pb2.AckRq(
        cluster=connection.cluster, topic=topic, group=group, partition=partition, offset=offset
    )
    stub.Ack(request, timeout=timeout)


def _shown(topic: str, message: "ConsRs") -> ShownMessage:
    key = None if message.key_undefined else message.key_value
    return ShownMessage(
        topic,
        message.partition,
        message.offset,
        key,
        None if message.value_undefined else message.message,
        [(header.key, header.value) for header in message.headers],
    )


def _shown_of_batch(topic: str, message: "ConsumedMessage") -> ShownMessage:
    key = message.key if message.HasField("key") else None
    return ShownMessage(
        topic,
        message.partition,
        message.offset,
        key,
        message.value if message.HasField("value") else None,
        [(header.key, header.value if header.HasField("value") else None) for header in message.headers],
    )


def key_fields(message: ShownMessage) -> Sequence[str]:
    """The key for people, if there is one."""
    return [] if message.key is None else [f"key={readable_bytes(message.key)}"]
