"""`pixy produce`."""

import os
import sys
from typing import IO

import click

from pixy.cli.connection import CallFailed, DaemonConnection, client_command, no_reconnect_option
from pixy.cli.line_writer import LineWriter, TargetTopic, Written
from pixy.cli.message_input import Headers, InputForm, read_function, split_messages
from pixy.cli.message_output import separator_of
from pixy.cli.output import MessageProgress, report_error
from pixy.cli.reconnection import ReconnectingStub


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
    "--null-value", "-Z", is_flag=True, help="Null instead of VALUE; of the input, instead of empty values."
)
@click.option("--file", type=click.File("rb"), help="The whole FILE is the value; - is standard input.")
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
    "--key-separator",
    "-K",
    metavar="TEXT",
    help="Each message of the input has a key before TEXT; \\t is a tab.",
)
@click.option(
    "--from-json",
    is_flag=True,
    help="Each message of the input is an object, as consume --json and peek --json print them.",
)
@click.option(
    "--spread",
    is_flag=True,
    help="Write messages without a key to all partitions in turn; order holds within each partition.",
)
@no_reconnect_option
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
    null_value: bool,
    file: IO[bytes] | None,
    asynchronous: bool,
    null_separated: bool,
    key_separator: str | None,
    from_json: bool,
    spread: bool,
    no_reconnect: bool,
    verbose: bool,
) -> None:
    """Produce VALUE to TOPIC, or each line of standard input if VALUE is missing or -.

    Every line of the input is a message, also an empty one. Messages are written in the order of
    the input, without a key to one partition, which is chosen anew for each run, and are durable
    when the command exits. The summary goes to standard error. --verbose prints topic, partition
    and offset of each message, with --json as an object. The first failure ends the command, with
    the number of the line and of the messages written.

    While the daemon restarts, or the node is lost, the input waits. What had no answer is sent
    again, and may then be there twice; the summary says how much.
    """
    keyed = key_separator is not None or from_json
    single = file is not None or (null_value and not keyed) if value is None else value != "-"
    form = InputForm(_encoded(key), headers, separator_of(key_separator), null_value, from_json)
    if single and keyed:
        raise click.UsageError("--key-separator and --from-json are for messages of standard input")
    if key is not None and keyed:
        raise click.UsageError("--key contradicts the keys of the input")
    if key_separator is not None and from_json:
        raise click.UsageError("--key-separator and --from-json are mutually exclusive")
    if file is not None and value is not None:
        raise click.UsageError("--file and VALUE are mutually exclusive")
    if not single:
        destination = TargetTopic(topic, connection.cluster, spread)
        _produce_input(connection, destination, form, null_separated, verbose, not no_reconnect)
        return
    if null_value and (value or file is not None):
        raise click.UsageError("--null-value contradicts a value")
    content = file.read() if file is not None else None if null_value else os.fsencode(value or "")
    _produce_one(connection, topic, form.key, content, headers, asynchronous)


def _produce_one(
    connection: DaemonConnection,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    asynchronous: bool,
) -> None:
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ProdRq(
        cluster=connection.cluster,
        topic=topic,
        key_value=key or b"",
        key_undefined=key is None,
        message=value or b"",
        value_undefined=value is None,
        async_mode=asynchronous,
        headers=[kafkapixy_pb2.RecordHeader(key=name, value=text or b"") for name, text in headers],
    )
    with connection.open() as stub:
        answer = stub.Produce(request, timeout=connection.timeout)
    _print_written(connection, topic, answer.partition, answer.offset)


def _encoded(key: str | None) -> bytes | None:
    return None if key is None else os.fsencode(key)


def _print_written(connection: DaemonConnection, topic: str, partition: int, offset: int) -> None:
    written = {"topic": topic, "partition": partition, "offset": offset}
    connection.tell(written, f"topic={topic} partition={partition} offset={offset}")


def _produce_input(
    connection: DaemonConnection,
    destination: TargetTopic,
    form: InputForm,
    null_separated: bool,
    verbose: bool,
    reconnects: bool,
) -> None:
    from pixy.proto.pixy_log_pb2_grpc import LogStub

    progress = MessageProgress(shown=sys.stderr.isatty() and not (verbose and sys.stdout.isatty()))

    def report(written: Written) -> None:
        if verbose:
            for partition, offset in written.positions:
                _print_written(connection, destination.topic, partition, offset)
        progress.add(len(written.messages))

    with ReconnectingStub(connection, LogStub, reconnects=reconnects) as link:
        writer = LineWriter(link, destination, form, connection.timeout, report)
        writer.run(split_messages(read_function(sys.stdin.buffer), b"\0" if null_separated else b"\n"))
    failure = writer.failure
    if progress.count or failure is None:
        progress.finish()
    unit = "message" if null_separated else "line"
    if writer.repeated:
        count = len(writer.repeated)
        again = f"{unit} was" if count == 1 else f"{unit}s were"
        report_error(f"{count} {again} sent again for want of an answer, and may be there twice")
    if failure is not None:
        why = failure if isinstance(failure, CallFailed) else connection.failure(failure)
        before = writer.failed - 1
        behind = f", {writer.written - before} behind it" if writer.written > before else ""
        doubt = f", and perhaps {writer.in_doubt} from it on" if writer.in_doubt else ""
        raise CallFailed(f"{unit} {writer.failed}: {why}; {before} written before it{behind}{doubt}")
