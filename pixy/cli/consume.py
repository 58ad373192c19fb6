"""`pixy consume` and `pixy ack`."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from pixy.cli.connection import CallFailed, DaemonConnection, client_command, status_name
from pixy.cli.message_output import MessageOutput, ShownMessage, output_options, separator_of
from pixy.cli.output import print_json, print_line, readable_bytes, report_error
from pixy.cli.reconnection import ReconnectingStub

if TYPE_CHECKING:
    import grpc

    from pixy.proto.kafkapixy_pb2 import ConsNAckRq, ConsRs
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

__all__ = ["ack", "consume"]

NO_MESSAGE = 3
"""Exit code of `consume` if too few messages arrive in time."""

_WAIT_SECONDS = 10.0
_LAST_ACK_SECONDS = 5.0


@click.command()
@click.argument("topic")
@click.option("--group", "-g", required=True, help="Consumer group.")
@click.option(
    "--count",
    "-n",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Number of messages; 0: until Ctrl-C.",
)
@click.option(
    "--no-ack", is_flag=True, help="Do not acknowledge: messages are redelivered after the ack timeout."
)
@click.option("--auto-ack", is_flag=True, help="Acknowledge messages before they are printed: at most once.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help=f"How long to wait for each message. [default: {_WAIT_SECONDS:g}; with -n 0: no limit]",
)
@click.option("--create", is_flag=True, help="Create TOPIC if it does not exist.")
@click.option(
    "--no-reconnect",
    is_flag=True,
    help="End when the daemon restarts or the node is lost, instead of trying again.",
)
@click.option("--verbose", "-v", is_flag=True, help="Print partition, offset and key before each message.")
@output_options
@client_command
def consume(
    *,
    connection: DaemonConnection,
    topic: str,
    group: str,
    count: int,
    no_ack: bool,
    auto_ack: bool,
    wait: float | None,
    create: bool,
    no_reconnect: bool,
    verbose: bool,
    key_separator: str | None,
    raw: bool,
    null_separated: bool,
) -> None:
    """Consume messages of TOPIC on behalf of a consumer group.

    Each message is acknowledged after it is printed. A value is one line: line ends and control
    characters other than tabs are shown as \\n, \\x1b and so on, and what is not UTF-8 as
    base64:... A null value is an empty line, which --verbose and --json tell from an empty value.
    With --raw the bytes are as they are, and nothing follows the only message of -n 1, so that a
    file is as it was.

    With --json one object per line, with the exact value: topic, partition, offset, key (null:
    none), value (null: null), headers (a list of objects with key and value); bytes that are not
    UTF-8 are {"base64": "..."}. `pixy produce --from-json` takes these objects.

    A topic that does not exist is created only with --create. While the daemon restarts, or the
    node is lost, the command waits for it as long as for messages.

    Exits with 3 if fewer messages arrived than requested (with -n 0: none).
    """
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

    if no_ack and auto_ack:
        raise click.UsageError("--no-ack and --auto-ack are mutually exclusive")
    wait = _WAIT_SECONDS if wait is None and count else wait
    end = b"\0" if null_separated else b"" if raw and count == 1 else b"\n"
    output = MessageOutput(connection.as_json, verbose, separator_of(key_separator), raw, end)
    printed = 0
    if create:
        _create(connection, topic)
    with ReconnectingStub(connection, KafkaPixyStub, reconnects=not no_reconnect) as link:
        if not create:
            _check_topic(connection, link, topic)
        with_acks = _Consumer(connection, link, topic, group, no_ack=no_ack, auto_ack=auto_ack)
        for message in with_acks.messages(wait):
            output.add(_shown(topic, message))
            output.flush()
            with_acks.printed(message)
            printed += 1
            if printed == count:
                break
        with_acks.finish()
    if printed < max(count, 1):
        asked = f"{printed} of {count} messages" if printed else "no message"
        report_error(f"{asked} in {topic} for {group} within {wait:g} s")
        click.get_current_context().exit(NO_MESSAGE)


def _check_topic(connection: DaemonConnection, link: "ReconnectingStub[KafkaPixyStub]", topic: str) -> None:
    """Reject a topic that does not exist, because consuming would create it."""
    import grpc

    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.GetTopicMetadataRq(cluster=connection.cluster, topic=topic)
    try:
        link.stub.GetTopicMetadata(request, timeout=connection.timeout)
    except grpc.RpcError as error:
        if status_name(error) != "NOT_FOUND":
            raise
        raise CallFailed(f"topic {topic} does not exist; create it with --create") from None
    link.answered()


def _create(connection: DaemonConnection, topic: str) -> None:
    import grpc

    from pixy.proto import pixy_topics_pb2

    request = pixy_topics_pb2.CreateTopicRequest(cluster=connection.cluster, topic=topic)
    with connection.open_topics() as stub:
        try:
            stub.CreateTopic(request, timeout=connection.timeout)
        except grpc.RpcError as error:
            if status_name(error) != "ALREADY_EXISTS":
                raise


@dataclass(slots=True)
class _Consumer:
    """Requests messages one by one and acknowledges printed ones.

    The ack of a message is sent with the request for the next one, or on its own after the last. It
    is sent again while there is no answer: an ack of what is acknowledged changes nothing.
    """

    connection: DaemonConnection
    link: "ReconnectingStub[KafkaPixyStub]"
    topic: str
    group: str
    no_ack: bool
    auto_ack: bool
    unacked: "ConsRs | None" = field(default=None, init=False)

    def messages(self, wait: float | None) -> "Iterator[ConsRs]":
        """Messages until none arrives for `wait` seconds. On any exit, printed messages are
        acknowledged.
        """
        import grpc

        try:
            while (message := self._next(wait)) is not None:
                yield message
        except (KeyboardInterrupt, grpc.RpcError):
            self._ack_at_last()
            raise

    def printed(self, message: "ConsRs") -> None:
        """Mark a message as printed, which makes it due for an ack."""
        if not self.no_ack and not self.auto_ack:
            self.unacked = message

    def finish(self) -> None:
        """Acknowledges the last message."""
        import grpc

        until = time.monotonic() + self.connection.timeout
        while self.unacked is not None:
            try:
                self._ack(self.unacked, self.connection.timeout)
            except grpc.RpcError as error:
                if not self.link.again(error, until):
                    raise CallFailed(self._not_confirmed(self.unacked, error)) from error

    def _next(self, wait: float | None) -> "ConsRs | None":
        import grpc

        deadline = None if wait is None else time.monotonic() + wait
        timeout = self.connection.timeout
        while deadline is None or (left := deadline - time.monotonic()) > 0:
            try:
                poll = timeout if deadline is None else min(timeout, left)
                message = self.link.stub.ConsumeNAck(self._request(), timeout=poll)
            except grpc.RpcError as error:
                if status_name(error) == "NOT_FOUND":
                    self.link.answered()
                    self.unacked = None
                elif status_name(error) != "DEADLINE_EXCEEDED" and not self.link.again(error, deadline):
                    raise
            else:
                self.link.answered()
                self.unacked = None
                return message
        return None

    def _request(self) -> "ConsNAckRq":
        from pixy.proto import kafkapixy_pb2

        request = kafkapixy_pb2.ConsNAckRq(
            cluster=self.connection.cluster, topic=self.topic, group=self.group, auto_ack=self.auto_ack
        )
        if self.unacked is not None:
            request.ack_partition, request.ack_offset = self.unacked.partition, self.unacked.offset
        else:
            request.no_ack = not self.auto_ack
        return request

    def _ack(self, message: "ConsRs", timeout: float) -> None:
        position = (message.partition, message.offset)
        _ack(self.connection, self.link.stub, self.topic, self.group, position, timeout)
        self.unacked = None

    def _ack_at_last(self) -> None:
        import grpc

        if self.unacked is None:
            return
        try:
            self._ack(self.unacked, min(self.connection.timeout, _LAST_ACK_SECONDS))
        except grpc.RpcError as error:
            report_error(self._not_confirmed(self.unacked, error))

    def _not_confirmed(self, message: "ConsRs", error: "grpc.RpcError") -> str:
        """The request for the next message may have acknowledged it."""
        place = f"{self.topic}/{message.partition} at offset {message.offset}"
        return (
            f"the acknowledgement of the last message, {place}, is not confirmed: the message may be redelivered: "
            f"{self.connection.failure(error)}"
        )


def _shown(topic: str, message: "ConsRs") -> ShownMessage:
    key = None if message.key_undefined else message.key_value
    return ShownMessage(
        topic,
        message.partition,
        message.offset,
        key,
        None if message.value_undefined else message.message,
        [(header.key, header.value) for header in message.headers],
        fields=[] if key is None else [f"key={readable_bytes(key)}"],
    )


@click.command(context_settings={"ignore_unknown_options": True})  # -1 is a number here
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0, (1 << 31) - 1))
@click.argument("offset", type=click.IntRange(0, (1 << 63) - 1))
@click.option("--group", "-g", required=True, help="Consumer group.")
@client_command
def ack(connection: DaemonConnection, topic: str, partition: int, offset: int, group: str) -> None:
    """Acknowledge the message of TOPIC at PARTITION and OFFSET on behalf of a consumer group."""
    with connection.open() as stub:
        _ack(connection, stub, topic, group, (partition, offset), connection.timeout)
    if connection.as_json:
        print_json({"topic": topic, "group": group, "partition": partition, "offset": offset})
    else:
        print_line(f"acknowledged topic={topic} partition={partition} offset={offset} group={group}")


def _ack(
    connection: DaemonConnection,
    stub: "KafkaPixyStub",
    topic: str,
    group: str,
    position: tuple[int, int],
    timeout: float,
) -> None:
    from pixy.proto import kafkapixy_pb2

    partition, offset = position
    request = kafkapixy_pb2.AckRq(
        cluster=connection.cluster, topic=topic, group=group, partition=partition, offset=offset
    )
    stub.Ack(request, timeout=timeout)
