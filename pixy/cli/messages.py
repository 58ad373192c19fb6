"""`pixy produce`, `pixy consume` and `pixy ack`."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING

import click

from pixy.cli.connection import CallFailed, DaemonConnection, client_command, status_name
from pixy.cli.line_writer import LineWriter, Messages, Written, split_messages
from pixy.cli.output import (
    MessageProgress,
    json_bytes,
    message_line,
    print_json,
    print_line,
    readable_bytes,
    report_error,
)

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2 import ConsNAckRq, ConsRs
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

__all__ = ["ack", "consume", "produce"]

NO_MESSAGE = 3
"""Exit code of `consume` if too few messages arrive in time."""

_WAIT_SECONDS = 10.0
_LAST_ACK_SECONDS = 5.0


class Header(click.ParamType[tuple[str, bytes]]):
    """`NAME=VALUE`."""

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, bytes]:
        name, sign, text = str(value).partition("=")
        if not name or not sign:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, os.fsencode(text)


@click.command()
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", "-k", help="Key; selects the partition. Default: no key. May be empty.")
@click.option(
    "--header", "-H", "headers", multiple=True, type=Header(), help="Header, NAME=VALUE; repeatable."
)
@click.option(
    "--async",
    "asynchronous",
    is_flag=True,
    help="Do not wait until VALUE is written (partition and offset are -1).",
)
@click.option(
    "--null-separated",
    "-0",
    is_flag=True,
    help="Messages of the input end with a null byte instead of a newline.",
)
@click.option(
    "--spread",
    is_flag=True,
    help="Write the input to all partitions in turn; order holds within each partition.",
)
@click.option(
    "--verbose", "-v", is_flag=True, help="Print partition and offset of each message of the input."
)
@client_command
def produce(
    *,
    connection: DaemonConnection,
    topic: str,
    value: str | None,
    key: str | None,
    headers: tuple[tuple[str, bytes], ...],
    asynchronous: bool,
    null_separated: bool,
    spread: bool,
    verbose: bool,
) -> None:
    """Produce VALUE to TOPIC, or each line of standard input if VALUE is missing or -.

    Every line of the input is a message, also an empty one. Messages are written in the order of
    the input, without a key to one partition, which is chosen anew for each run, and are durable
    when the command exits. The summary goes to standard error. --verbose prints topic, partition
    and offset of each message, with --json as an object. The first failure ends the command, with
    the number of the line and of the messages written.
    """
    if value is None or value == "-":
        messages = Messages(topic, connection.cluster, _encoded(key), headers, spread)
        _produce_input(connection, messages, null_separated, verbose)
        return
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ProdRq(
        cluster=connection.cluster,
        topic=topic,
        key_value=_encoded(key) or b"",
        key_undefined=key is None,
        message=os.fsencode(value),
        async_mode=asynchronous,
        headers=[kafkapixy_pb2.RecordHeader(key=name, value=text) for name, text in headers],
    )
    with connection.open() as stub:
        answer = stub.Produce(request, timeout=connection.timeout)
    _print_written(connection, topic, answer.partition, answer.offset)


def _encoded(key: str | None) -> bytes | None:
    return None if key is None else os.fsencode(key)


def _print_written(connection: DaemonConnection, topic: str, partition: int, offset: int) -> None:
    if connection.as_json:
        print_json({"topic": topic, "partition": partition, "offset": offset})
    else:
        print_line(f"topic={topic} partition={partition} offset={offset}")


def _produce_input(
    connection: DaemonConnection, messages: Messages, null_separated: bool, verbose: bool
) -> None:
    progress = MessageProgress(shown=sys.stderr.isatty() and not (verbose and sys.stdout.isatty()))

    def report(written: Written) -> None:
        if verbose:
            for offset in range(written.offset, written.offset + written.count):
                _print_written(connection, messages.topic, written.partition, offset)
        progress.add(written.count)

    with connection.open_log() as stub:
        writer = LineWriter(stub, messages, connection.timeout, report)
        writer.run(split_messages(_reader(sys.stdin.buffer), b"\0" if null_separated else b"\n"))
    failure = writer.failure
    if progress.count or failure is None:
        progress.finish()
    if failure is not None:
        unit = "message" if null_separated else "line"
        why = failure if isinstance(failure, CallFailed) else connection.failure(failure)
        doubt = f", and perhaps {writer.in_doubt} from it on" if writer.in_doubt else ""
        raise CallFailed(f"{unit} {writer.written + 1}: {why}; {writer.written} written before it{doubt}")


def _reader(stream: IO[bytes]) -> Callable[[int], bytes]:
    """A read function that returns the bytes that have arrived."""
    try:
        return partial(os.read, stream.fileno())
    except OSError:  # input without a file, in tests
        return stream.read


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
@click.option("--verbose", "-v", is_flag=True, help="Print partition, offset and key before each message.")
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
    verbose: bool,
) -> None:
    """Consume messages of TOPIC on behalf of a consumer group.

    Each message is acknowledged after it is printed. A value is one line: line ends and control
    characters other than tabs are shown as \\n, \\x1b and so on, and what is not UTF-8 as
    base64:... With --json one object per line, with the exact value: topic, partition, offset, key
    (null: none), value, headers (a list of objects with key and value); bytes that are not UTF-8
    are {"base64": "..."}.

    A topic that does not exist is created only with --create.

    Exits with 3 if fewer messages arrived than requested (with -n 0: none).
    """
    if no_ack and auto_ack:
        raise click.UsageError("--no-ack and --auto-ack are mutually exclusive")
    wait = _WAIT_SECONDS if wait is None and count else wait
    printed = 0
    if create:
        _create(connection, topic)
    with connection.open() as stub:
        if not create:
            _check_topic(connection, stub, topic)
        with_acks = _Consumer(connection, stub, topic, group, no_ack=no_ack, auto_ack=auto_ack)
        for message in with_acks.messages(wait):
            _print_message(connection, topic, message, verbose)
            with_acks.printed(message)
            printed += 1
            if printed == count:
                break
        with_acks.finish()
    if printed < max(count, 1):
        asked = f"{printed} of {count} messages" if printed else "no message"
        report_error(f"{asked} in {topic} for {group} within {wait:g} s")
        click.get_current_context().exit(NO_MESSAGE)


def _check_topic(connection: DaemonConnection, stub: "KafkaPixyStub", topic: str) -> None:
    """Reject a topic that does not exist, because consuming would create it."""
    import grpc

    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.GetTopicMetadataRq(cluster=connection.cluster, topic=topic)
    try:
        stub.GetTopicMetadata(request, timeout=connection.timeout)
    except grpc.RpcError as error:
        if status_name(error) != "NOT_FOUND":
            raise
        raise CallFailed(f"topic {topic} does not exist; create it with --create") from None


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

    The ack of a message is sent with the request for the next one, or on its own after the last.
    """

    connection: DaemonConnection
    stub: "KafkaPixyStub"
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
        if self.unacked is not None:
            timeout = self.connection.timeout
            _ack(self.connection, self.stub, self.topic, self.group, _position(self.unacked), timeout)
            self.unacked = None

    def _next(self, wait: float | None) -> "ConsRs | None":
        import grpc

        deadline = None if wait is None else time.monotonic() + wait
        timeout = self.connection.timeout
        while deadline is None or (left := deadline - time.monotonic()) > 0:
            try:
                poll = timeout if deadline is None else min(timeout, left)
                message = self.stub.ConsumeNAck(self._request(), timeout=poll)
            except grpc.RpcError as error:
                if status_name(error) == "NOT_FOUND":
                    self.unacked = None
                elif status_name(error) != "DEADLINE_EXCEEDED":
                    raise
            else:
                self.unacked = None
                return message
        return None

    def _request(self) -> "ConsNAckRq":
        from pixy.proto import kafkapixy_pb2

        request = kafkapixy_pb2.ConsNAckRq(
            cluster=self.connection.cluster, topic=self.topic, group=self.group, auto_ack=self.auto_ack
        )
        if self.unacked is not None:
            request.ack_partition, request.ack_offset = _position(self.unacked)
        else:
            request.no_ack = not self.auto_ack
        return request

    def _ack_at_last(self) -> None:
        import grpc

        if self.unacked is None:
            return
        timeout = min(self.connection.timeout, _LAST_ACK_SECONDS)
        try:
            _ack(self.connection, self.stub, self.topic, self.group, _position(self.unacked), timeout)
        except grpc.RpcError as error:
            report_error(
                f"the last message was not acknowledged and will be redelivered: {self.connection.failure(error)}"
            )


def _position(message: "ConsRs") -> tuple[int, int]:
    return message.partition, message.offset


def _print_message(connection: DaemonConnection, topic: str, message: "ConsRs", verbose: bool) -> None:
    if not connection.as_json:
        key = [] if message.key_undefined else [f"key={readable_bytes(message.key_value)}"]
        print_line(
            message_line(message.partition, message.offset, key, message.message)
            if verbose
            else readable_bytes(message.message)
        )
        return
    print_json(
        {
            "topic": topic,
            "partition": message.partition,
            "offset": message.offset,
            "key": None if message.key_undefined else json_bytes(message.key_value),
            "value": json_bytes(message.message),
            "headers": [{"key": header.key, "value": json_bytes(header.value)} for header in message.headers],
        }
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
