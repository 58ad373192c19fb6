"""`pixy offsets`: shows and sets the offsets of a consumer group."""

import re
from typing import TYPE_CHECKING

import click

from pixy.cli.connection import DaemonConnection, client_command
from pixy.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from pixy.proto import kafkapixy_pb2

__all__ = ["offsets"]

_NOTHING_COMMITTED = -1
_WORDS = {"oldest": -2, "newest": -1}
_FIELDS = ("partition", "begin", "end", "count", "offset", "lag", "metadata", "sparse_acks")
_COLUMNS = ("partition", "begin", "end", "count", "offset", "lag", "sparse_acks")


class PartitionOffset(click.ParamType[tuple[int, int]]):
    """`PARTITION=OFFSET`, with a number, `oldest` or `newest` as the offset."""

    name = "PARTITION=OFFSET"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        match = re.fullmatch(r"([0-9]+)=([0-9]+|oldest|newest)", str(value))
        if match is None or int(match[1]) >= 1 << 31:
            self.fail(f"{value!r} is not PARTITION=OFFSET, such as 0=42, 0=oldest or 0=newest", param, ctx)
        offset = _WORDS[match[2]] if match[2] in _WORDS else int(match[2])
        if offset >= 1 << 63:
            self.fail(f"{value!r}: no offset is that large", param, ctx)
        return int(match[1]), offset


@click.group()
def offsets() -> None:
    """Show or set the offsets of a consumer group."""


@offsets.command()
@click.argument("topic")
@click.option("--group", "-g", required=True, help="Consumer group.")
@client_command
def get(connection: DaemonConnection, topic: str, group: str) -> None:
    """Show the offsets of each partition of TOPIC, and the position of a consumer group in it.

    Offset -1: the group has no committed offset, and its lag is shown as -. With --json a list of
    objects with partition, begin, end, count, offset, lag (null: none), metadata and sparse_acks.
    """
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.GetOffsetsRq(cluster=connection.cluster, topic=topic, group=group)
    with connection.open() as stub:
        found = stub.GetOffsets(request, timeout=connection.timeout).offsets
    if connection.as_json:
        print_json([_values(entry, _FIELDS, None) for entry in found])
    else:
        rows = [list(_values(entry, _COLUMNS, "-").values()) for entry in found]
        print_table([name.upper() for name in _COLUMNS], rows)


def _values(
    entry: "kafkapixy_pb2.PartitionOffset", names: tuple[str, ...], no_lag: object
) -> dict[str, object]:
    values = {name: getattr(entry, name) for name in names}
    if entry.offset == _NOTHING_COMMITTED:
        values["lag"] = no_lag
    return values


@offsets.command("set")
@click.argument("topic")
@click.argument("positions", nargs=-1, required=True, type=PartitionOffset(), metavar="PARTITION=OFFSET...")
@click.option("--group", "-g", required=True, help="Consumer group.")
@client_command
def set_(
    connection: DaemonConnection, topic: str, positions: tuple[tuple[int, int], ...], group: str
) -> None:
    """Set the offsets of a consumer group in TOPIC: all of them or none.

    OFFSET is a number, `oldest` or `newest`. Other partitions are unchanged.
    """
    from pixy.proto import kafkapixy_pb2

    moved = [kafkapixy_pb2.PartitionOffset(partition=number, offset=offset) for number, offset in positions]
    request = kafkapixy_pb2.SetOffsetsRq(cluster=connection.cluster, topic=topic, group=group, offsets=moved)
    with connection.open() as stub:
        stub.SetOffsets(request, timeout=connection.timeout)
    if connection.as_json:
        print_json([{"partition": number, "offset": offset} for number, offset in positions])
    else:
        print_line(f"set {len(moved)} partition{'' if len(moved) == 1 else 's'} of {topic} for {group}")
