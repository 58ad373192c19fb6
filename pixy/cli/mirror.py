"""`pixy mirror`: copies of topics in another cluster."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pixy.cli.connection import DaemonConnection
from pixy.cli.contexts import CONTEXT_OPTIONS, context_values
from pixy.cli.output import print_json, print_line, report_error

if TYPE_CHECKING:
    from pixy.mirror import ClusterClient, Event

_CALL_S = 60.0
_TROUBLES = frozenset({"gap", "refused", "outage"})
"""Kinds of events that are lines on standard error."""


@click.command()
@click.option(
    "--from", "source", metavar="ADDRESS", help="Daemon with the topics: HOST[:PORT],... or unix:PATH."
)
@click.option("--from-cluster", default="", help="Cluster name there. Default: its default cluster.")
@click.option("--from-context", help="Take address, cluster and TLS of the source from this context.")
@click.option("--to", "target", metavar="ADDRESS", help="Daemon that gets the copies.")
@click.option("--to-cluster", default="", help="Cluster name there. Default: its default cluster.")
@click.option("--to-context", help="Take address, cluster and TLS of the target from this context.")
@click.option(
    "--topics",
    "patterns",
    required=True,
    multiple=True,
    metavar="PATTERN,...",
    help="Topics to copy: names, or patterns with *, ? and [...]. May be given several times.",
)
@click.option("--groups", is_flag=True, help="Carry the offsets of consumer groups, too.")
@click.option("--once", is_flag=True, help="End when everything is copied that is there at the begin.")
@click.option(
    "--back",
    is_flag=True,
    help="Turn topics around that a mirror of this name has copied in the other direction, and has to have ended.",
)
@click.option(
    "--name",
    default="default",
    show_default=True,
    help="Name of the mirror at the target. One target has at most one running mirror of a name.",
)
@click.option(
    "--rate",
    default="0",
    show_default=True,
    metavar="SIZE",
    help="Bytes to fetch in a second at most; 0 for no limit.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two lines about progress.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def mirror(
    patterns: tuple[str, ...], groups: bool, once: bool, back: bool, as_json: bool, **given: Any
) -> None:
    """Copy topics to another cluster, each message once, and go on as long as it runs.

    Topics are made at the target with the partitions and options that they have at the source.
    Messages keep their partition, order, key, headers and timestamp; their offsets may differ.
    Either side may be a daemon in front of Kafka, and both may be clusters of one daemon.

    It may be ended or killed at any moment: what is copied is known from the target alone, in its
    topic pixy-mirror.NAME. Run it again with the same --name to go on. While a cluster cannot be
    reached, it tries again; with --once for two minutes.

    Nobody else should write to the topics at the target while it runs.
    """
    from pixy.mirror import Mirror, MirrorOptions

    connection = DaemonConnection("", "", as_json, _CALL_S, None)
    wanted = [each.strip() for pattern in patterns for each in pattern.split(",") if each.strip()]
    if not wanted:
        raise click.UsageError("--topics names no topic")
    options = MirrorOptions(
        name=_checked(given["name"]),
        patterns=wanted,
        groups=groups,
        once=once,
        back=back,
        bytes_per_second=_size(given["rate"]),
        progress_s=given["interval"],
    )

    def tell(event: "Event") -> None:
        if as_json:
            print_json({"event": event.kind, **event.values})
        elif event.kind in _TROUBLES:
            report_error(event.text)
        else:
            print_line(event.text)

    source = _client("source", "from", connection, given)
    target = _client("target", "to", connection, given)
    try:
        Mirror(source, target, options, tell).run()
    finally:
        source.close()
        target.close()


def _client(
    side: str, option: str, connection: DaemonConnection, given: Mapping[str, Any]
) -> "ClusterClient":
    from pixy.cli.addresses import grpc_targets
    from pixy.mirror import ClusterClient

    context, address, cluster = given[f"{option}_context"], given[side], given[f"{option}_cluster"]
    if context is not None:
        name, values = context_values(context)
        connection = replace(
            connection, context=name, **{each: values[each] for each in CONTEXT_OPTIONS if each in values}
        )
    if address:
        connection = replace(connection, address=address)
    if not connection.address:
        raise click.UsageError(f"--{option} or --{option}-context is missing")
    grpc_targets(connection.address)
    return ClusterClient(side, connection.channel, cluster or connection.cluster, connection.timeout)


def _checked(name: str) -> str:
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", name) is None:
        raise click.BadParameter("1 to 200 of the characters a-z A-Z 0-9 . _ -", param_hint="--name")
    return name


def _size(text: str) -> int:
    from pixy.config import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rate") from error
