"""`pixy produce`, `pixy consume` and `pixy ack`: messages in, messages out."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import click

from pixy.cli.connection import CallFailed, Connection, client_command, status_name
from pixy.cli.output import Progress, json_bytes, print_json, print_line, readable_bytes, report_error
from pixy.cli.pipeline import IN_FLIGHT_MAX, Pipeline

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2 import ConsNAckRq, ConsRs, ProdRq, ProdRs
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

__all__ = ["ack", "consume", "produce"]

NO_MESSAGE = 3
"""Exit code of a consume that found too few messages in time."""

_WAIT_SECONDS = 10.0
_LAST_ACK_SECONDS = 5.0
_CHUNK_BYTES = 65536


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
@click.option(
    "--key", "-k", help="Key; chooses the partition. Without it the message has no key. May be empty."
)
@click.option(
    "--header", "-H", "headers", multiple=True, type=Header(), help="Header, NAME=VALUE; may be repeated."
)
@click.option(
    "--async", "asynchronous", is_flag=True, help="Do not wait until it is written (partition, offset: -1)."
)
@click.option(
    "--null-separated", "-0", is_flag=True, help="A null byte ends each message of the input, not a newline."
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, IN_FLIGHT_MAX),
    help=f"Messages of the input that may be on their way at once. [default: 1 with --key, else {IN_FLIGHT_MAX}]",
)
@client_command
def produce(
    connection: Connection,
    topic: str,
    value: str | None,
    key: str | None,
    headers: tuple[tuple[str, bytes], ...],
    asynchronous: bool,
    null_separated: bool,
    in_flight: int | None,
) -> None:
    """Produce VALUE to TOPIC, or each line of the standard input if VALUE is missing or -.

    Every line of the input is a message, an empty one too. Messages that are on their way together may be written in
    another order; with --key, one at a time is, so they keep theirs. Prints where each message went, in the order of
    the input, unless standard output is a terminal; with --json an object per line: topic, partition, offset. The
    summary goes to standard error. The first failure ends it, with the number of the line and how many messages were
    written.
    """
    from pixy.proto import kafkapixy_pb2

    def request(message: bytes) -> "ProdRq":
        return kafkapixy_pb2.ProdRq(
            cluster=connection.cluster,
            topic=topic,
            key_value=b"" if key is None else os.fsencode(key),
            key_undefined=key is None,
            message=message,
            async_mode=asynchronous,
            headers=[kafkapixy_pb2.RecordHeader(key=name, value=text) for name, text in headers],
        )

    def report(answer: "ProdRs") -> None:
        if connection.as_json:
            print_json({"topic": topic, "partition": answer.partition, "offset": answer.offset})
        else:
            print_line(f"topic={topic} partition={answer.partition} offset={answer.offset}")

    if value is not None and value != "-":
        with connection.open() as stub:
            report(stub.Produce(request(os.fsencode(value)), timeout=connection.timeout))
        return
    separator = b"\0" if null_separated else b"\n"
    requests = map(request, split_messages(sys.stdin.buffer, separator))
    in_flight = in_flight or (1 if key is not None else IN_FLIGHT_MAX)
    _produce_all(connection, requests, report, "message" if null_separated else "line", in_flight)


def split_messages(stream: IO[bytes], separator: bytes) -> Iterator[bytes]:
    """The messages of an input, each ended by the separator; the last one also by the end."""
    if separator == b"\n":
        for line in stream:
            yield line.removesuffix(b"\n")
        return
    rest = b""
    while chunk := stream.read(_CHUNK_BYTES):
        *messages, rest = (rest + chunk).split(separator)
        yield from messages
    if rest:
        yield rest


def _produce_all(
    connection: Connection,
    requests: "Iterator[ProdRq]",
    report: "Callable[[ProdRs], None]",
    unit: str,
    in_flight: int,
) -> None:
    # A person at a terminal wants to see how far it is, a program where each message went.
    person = sys.stdout.isatty() and not connection.as_json
    progress = Progress(shown=sys.stderr.isatty() and (person or not sys.stdout.isatty()))

    def report_and_count(answer: "ProdRs") -> None:
        if not person:
            report(answer)
        progress.add()

    with connection.open() as stub:
        pipeline = Pipeline(stub, connection.timeout, report_and_count, in_flight)
        pipeline.run(requests)
    if progress.count or pipeline.failure is None:
        progress.finish()
    if pipeline.failure is not None:
        behind = ""
        if pipeline.sent_after:
            behind = (
                f", {pipeline.written_after} of the {pipeline.sent_after} that were on their way behind it"
            )
        why = connection.failure(pipeline.failure)
        raise CallFailed(
            f"{unit} {pipeline.failed_number}: {why}; {pipeline.written} written before it{behind}"
        )


@click.command()
@click.argument("topic")
@click.option("--group", "-g", required=True, help="Consumer group.")
@click.option(
    "--count",
    "-n",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Messages; 0: until Ctrl-C.",
)
@click.option(
    "--no-ack", is_flag=True, help="Acknowledge nothing: the messages come again after the ack timeout."
)
@click.option("--auto-ack", is_flag=True, help="Acknowledge a message before it is printed: at most once.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help=f"How long to wait for each message. [default: {_WAIT_SECONDS:g}, with -n 0 without end]",
)
@client_command
def consume(
    connection: Connection,
    topic: str,
    group: str,
    count: int,
    no_ack: bool,
    auto_ack: bool,
    wait: float | None,
) -> None:
    """Consume messages of TOPIC on behalf of a consumer group.

    Each message is acknowledged after it was printed. Values are printed as they are, or as base64:... if they are not
    UTF-8. With --json an object per line: topic, partition, offset, key (null: none), value, headers (a list of objects
    with key and value); bytes that are not UTF-8 are {"base64": "..."}.

    Ends with 3 if fewer messages came than were asked for (with -n 0: none).
    """
    if no_ack and auto_ack:
        raise click.UsageError("--no-ack and --auto-ack exclude each other")
    wait = _WAIT_SECONDS if wait is None and count else wait
    printed = 0
    with connection.open() as stub:
        with_acks = _Consumer(connection, stub, topic, group, no_ack=no_ack, auto_ack=auto_ack)
        for message in with_acks.messages(wait):
            _print_message(connection, topic, message)
            with_acks.printed(message)
            printed += 1
            if printed == count:
                break
        with_acks.finish()
    if printed < max(count, 1):
        asked = f"{printed} of {count} messages" if printed else "no message"
        report_error(f"{asked} in {topic} for {group} within {wait:g} s")
        click.get_current_context().exit(NO_MESSAGE)


@dataclass(slots=True)
class _Consumer:
    """Asks for messages one by one and acknowledges those that were printed.

    The ack of a message rides on the request for the next one; where there is none, it goes on its own.
    """

    connection: Connection
    stub: "KafkaPixyStub"
    topic: str
    group: str
    no_ack: bool
    auto_ack: bool
    unacked: "ConsRs | None" = field(default=None, init=False)

    def messages(self, wait: float | None) -> "Iterator[ConsRs]":
        """Messages until none came for `wait` seconds. However it ends, what was printed is acknowledged."""
        import grpc

        try:
            while (message := self._next(wait)) is not None:
                yield message
        except (KeyboardInterrupt, grpc.RpcError):
            self._ack_at_last()
            raise

    def printed(self, message: "ConsRs") -> None:
        """The message reached its reader, so it is to be acknowledged."""
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
                f"the last message was not acknowledged and will come again: {self.connection.failure(error)}"
            )


def _position(message: "ConsRs") -> tuple[int, int]:
    return message.partition, message.offset


def _print_message(connection: Connection, topic: str, message: "ConsRs") -> None:
    if not connection.as_json:
        print_line(readable_bytes(message.message))
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
def ack(connection: Connection, topic: str, partition: int, offset: int, group: str) -> None:
    """Acknowledge the message of TOPIC at PARTITION and OFFSET on behalf of a consumer group."""
    with connection.open() as stub:
        _ack(connection, stub, topic, group, (partition, offset), connection.timeout)
    if connection.as_json:
        print_json({"topic": topic, "group": group, "partition": partition, "offset": offset})
    else:
        print_line(f"acknowledged topic={topic} partition={partition} offset={offset} group={group}")


def _ack(
    connection: Connection,
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
