"""`pixy consume` and `pixy ack`."""

import click

from pixy.cli.connection import DaemonConnection, client_command, no_reconnect_option
from pixy.cli.group_consumer import (
    GroupConsumer,
    acknowledge,
    check_topic,
    create_topic,
    key_fields,
    make_stubs,
)
from pixy.cli.message_output import MessageOutput, output_options, separator_of
from pixy.cli.output import report_error
from pixy.cli.reconnection import ReconnectingStub

NO_MESSAGE = 3
"""Exit code of `consume` if too few messages arrive in time."""

_WAIT_SECONDS = 10.0


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
@click.option("--create", is_flag=True, help="Create TOPIC if it does not exist, or is deleted meanwhile.")
@no_reconnect_option
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

    Each message is acknowledged after it is printed; of a batch that is at hand, all after the last
    one. A value is one line: line ends and control
    characters other than tabs are shown as \\n, \\x1b and so on, and what is not UTF-8 as
    base64:... A null value is an empty line, which --verbose and --json tell from an empty value.
    With --raw the bytes are as they are, and nothing follows the only message of -n 1, so that a
    file is as it was.

    With --json one object per line, with the exact value: topic, partition, offset, key (null:
    none), value (null: null), headers (a list of objects with key and value); bytes that are not
    UTF-8 are {"base64": "..."}. `pixy produce --from-json` takes these objects.

    A topic that does not exist is created only with --create. One that is deleted meanwhile ends
    the command; with -n 0 it waits until the topic exists again. While the daemon restarts, or the
    node is lost, the command waits for it as long as for messages.

    Exits with 3 if fewer messages arrived than requested (with -n 0: none).
    """
    if no_ack and auto_ack:
        raise click.UsageError("--no-ack and --auto-ack are mutually exclusive")
    wait = _WAIT_SECONDS if wait is None and count else wait
    end = b"\0" if null_separated else b"" if raw and count == 1 else b"\n"
    fields = key_fields if verbose else None
    output = MessageOutput(connection.as_json, fields, separator_of(key_separator), raw, end)
    printed = 0
    if create:
        create_topic(connection, topic)
    with ReconnectingStub(connection, make_stubs, reconnects=not no_reconnect) as link:
        if not create:
            check_topic(connection, link, topic)
        consumer = GroupConsumer(
            connection, link, topic, group, no_ack, auto_ack, creates=create, waits=not count
        )
        for messages in consumer.batches(wait, count):
            for message in messages:
                output.add(message)
            output.flush()
            consumer.printed(messages)
            printed += len(messages)
            if printed == count:
                break
        consumer.finish()
    if printed < max(count, 1):
        asked = f"{printed} of {count} messages" if printed else "no message"
        report_error(f"{asked} in {topic} for {group} within {wait:g} s")
        click.get_current_context().exit(NO_MESSAGE)


@click.command(context_settings={"ignore_unknown_options": True})  # -1 is a number here
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0, (1 << 31) - 1))
@click.argument("offset", type=click.IntRange(0, (1 << 63) - 1))
@click.option("--group", "-g", required=True, help="Consumer group.")
@client_command
def ack(connection: DaemonConnection, topic: str, partition: int, offset: int, group: str) -> None:
    """Acknowledge the message of TOPIC at PARTITION and OFFSET on behalf of a consumer group."""
    with connection.open() as stub:
        acknowledge(connection, stub, topic, group, (partition, offset), connection.timeout)
    connection.tell(
        {"topic": topic, "group": group, "partition": partition, "offset": offset},
        f"acknowledged topic={topic} partition={partition} offset={offset} group={group}",
    )
